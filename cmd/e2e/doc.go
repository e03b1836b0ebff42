// Package e2e holds the tests of the whole system: the real programs, as
// processes, on loopback, driven from outside only. A fleet (fleet_test.go) is
// one coordinator and its agents in a folder that goes with the test; they are
// stopped, continued and killed as a bad day would.
//
// Tests are named by the case that they show. What needs minutes of real time
// has the build tag long.
package e2e
