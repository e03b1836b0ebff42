// Package agentd is the agent: it keeps a session with a coordinator, runs the
// commands that come down and does not lose what came of them.
//
// What it promises:
//
//   - A command is started at most once, unless it is idempotent, over any
//     number of repeats, broken links and restarts. STARTED is in the journal,
//     fsynced, before the program is; what cannot be journaled is not started.
//   - Each command that was told to be RECEIVED gets one final Target, which is
//     sent again until the coordinator says that it is stored.
//   - Each command has one end; the first counts. A cancel that comes before its
//     command keeps it from ever running; one that comes while it runs ends the
//     whole process group and is journaled first, so that no start of the agent
//     runs the command again; one that comes later changes nothing.
//   - The first half of the output that is kept goes up while the program runs,
//     every 250 ms, the rest at its end. It is read from what is kept: a slow link
//     slows no program, and on a new link all of it is sent again.
//   - A program that an agent left behind when it died is killed by the next
//     one, before anything else runs; its command is INTERRUPTED.
//   - A damaged journal never keeps the agent from starting: what is intact is
//     used, the rest is set aside and reported.
//
// The data folder holds agent-id, lock, journal, output/ with the kept output of
// commands that are not settled, and refused/ with reports that a coordinator
// found invalid: in their place a plain one went up that says so. One agent at a
// time uses it.
//
// The plugin folder is looked at every 2 s. What is in it, and why some of it
// cannot be run, is in the Register, which is sent again when that changes.
//
// It runs on Linux: it finds processes in /proc.
//
// How STARTED precedes the program: a process has no number before it exists,
// and by then it may run. So the STARTED record carries a random run mark and
// is fsynced first; the program gets the mark in its environment (MUSTER_RUN),
// and its process group follows in a second record. An agent killed between
// the two finds the program by its mark, an agent killed later by its group.
package agentd
