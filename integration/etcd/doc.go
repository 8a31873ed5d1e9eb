// Package etcd tests adapters/etcdlock on an etcd server that runs within the
// tests. It is a module of its own: the server's requirements stay out of every
// other one.
package etcd
