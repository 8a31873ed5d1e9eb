// Package chaos breaks things for real while worker processes take locks, and
// checks from their logs that no two of them ever held a key at once.
//
// Several processes with many goroutines each, half of them on lib/pq and half
// on pgx, compete for a few keys of one cluster: a primary and a streaming
// standby, with a network that can be cut in front of every process, and
// pgbouncer in session mode in front of some. A driver of faults kills, stops,
// cuts, restarts and fails over, in an order that follows from a seed. Each
// worker logs its holds on the machine's monotonic clock, which all processes
// share, and [check] judges the whole history.
//
// One gap is in the nature of the thing: when the server ends a holder's
// session, a rival can enter until the holder is told. It is measured for each
// driver and fault, and bounded.
//
//	go test -run TestChaos -v ./chaos
//
// CHAOS_SEED repeats the faults of a run, whose seed is printed; CHAOS_SECONDS
// says how long it lasts. CHAOS_REPORT names a file into which the figures are
// written, between its markers, beside those of two other libraries, which go
// through the same faults for CHAOS_PEER_SECONDS each.
//
// What is asked is what the code at the workers' end could see. A hold begins
// when Acquire has returned, and ends before Release is called, or when Done is
// closed. So the checker raises no false alarm, and what a user could notice,
// it notices.
package chaos
