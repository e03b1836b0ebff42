//go:build long

package agentd

// long lets tests take minutes.
const long = true
