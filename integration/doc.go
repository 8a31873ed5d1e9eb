// Package integration holds the tests that need a real PostgreSQL: the laws of
// package portstest on every adapter and driver, the faults that other lock
// libraries had, races, and measures against the raw server.
//
// It is a module of its own, so that what it needs never enters the module
// graph of a user. Package postgres, below it, starts the server; package testkit
// has what the tests of all these packages have in common.
package integration
