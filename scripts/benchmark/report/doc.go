// Package report shows tables on a terminal and keeps them in docs/bench.md.
package report
