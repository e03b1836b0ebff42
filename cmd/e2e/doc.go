// Package e2e holds the tests of the whole system: the real programs, as
// processes, driven from outside only. A fleet (fleet_test.go) is one
// coordinator and its agents in a folder that goes with the test; they are
// stopped, continued and killed as a bad day would. A network (network_test.go)
// is another host, a relay (relay_test.go) a link that breaks, and a rawPeer
// (zmtp_test.go) or a rawCoordinator (redelivery_test.go) the other side by hand.
//
// Tests are named by the case that they show. What needs minutes of real time
// has the build tag long; short_test.go and long_test.go say how much of a case
// each run shows. Some tests need root.
package e2e
