// Package faults holds the tests that break something outside the program that
// holds a lock, and measure what its promises are worth then: the network, by
// the real kernel; the holder's process; the server, by restarts, crashes and
// failovers; and the way to the server, by a pooler that shares its sessions.
//
// They make what they break: servers, network namespaces, poolers, processes.
// Where the machine lacks the means, a test is skipped and says what is missing.
// They need Linux, root and the tag faults: make faults.
package faults
