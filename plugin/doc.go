// Package plugin runs other people's programs for muster and is the contract
// that a plugin keeps.
//
// Run starts one program in a session and process group of its own, bounds its
// time and its output, and returns an Outcome: how it ended is data, never an
// error. The promises:
//
//   - Arguments and environment are data; no shell ever sees them.
//   - When the time is up, or the context ends, the whole group gets TERM, then
//     the grace period, then KILL; with a Marker, processes that left the group
//     are found by it and killed too. A program that was stopped leaves nothing.
//   - When the program ends by itself, whatever is left of its process group is
//     killed 0.1 s later. A background child that is to live on needs a session
//     of its own (setsid, as daemons do); it loses its standard streams one
//     Drain later.
//   - Output is read as fast as it comes and kept in bounded memory: head and
//     tail, the true size, the SHA-256 of it all. No process that holds a pipe
//     open delays the result by more than Drain (1 s).
//   - A program that does not read its input is no failure and holds up nothing.
//   - A program that could not be started has a StartError that says why, apart
//     from any exit code.
//   - What is certain to be kept can be read while the program runs (Head).
//
// A Folder holds plugins: a command type is a program of that name in it.
// RunCommand speaks the contract's run mode with one: the command as JSON on
// its standard input, JSON lines on its standard output (see Lines). Describe
// asks it what it is. A plain program that knows no "describe" is a plugin too,
// and taken to speak contract 1.
//
// Main is for the authors of plugins in Go; in other languages the contract is
// small enough to be written by hand.
//
// A Group names a process group across restarts of the agent, so that what an
// agent left behind can be ended by the next one.
package plugin
