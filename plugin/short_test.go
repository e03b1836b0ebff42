//go:build !long

package plugin

// long lets tests take minutes.
const long = false
