// Package agentd is the agent: it keeps a session with a coordinator, runs the
// commands that come down, does not lose what came of them, and holds the configs
// that it is offered.
//
// What it promises:
//
//   - A command is started at most once, unless it is idempotent, over any
//     number of repeats, broken links and restarts. STARTED is in the journal,
//     fsynced, before the program is; what cannot be journaled is not started.
//   - Each command that is in the journal gets one final Target, which is sent
//     again until the coordinator says that it is stored. RECEIVED and RUNNING are
//     told of what has not ended within 20 ms.
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
// # Configs
//
// A config that is offered is a file below the config root. What the agent promises:
//
//   - The file is one version or another, whole, at every moment, wherever the
//     agent dies; its mode and owner stay, a new one is the agent's and has the
//     mode of its FileSpec. Extended attributes do not stay, and another hard link
//     keeps the old file.
//   - Nothing outside of the root is written or read, whatever a coordinator says:
//     names are no paths, paths have no "..", and no part of the way is a link. A
//     target that is a link, a folder or a device is left as it is. Folders are not
//     made. Of two configs with one path the second FAILED.
//   - check_cmd sees the staged file, with "{}" for its name, before anything is
//     in place; it can write neither to that nor to the target unnoticed. Both it
//     and reload_cmd run in the config root, and only if hooks are allowed.
//   - A version that reload_cmd does not accept, or that the agent died of, is
//     taken back, and reload_cmd is run for what is back. It is not tried again
//     before it is offered again, and neither is an offer that is wrong in itself.
//     Every other failure may pass, and is tried again after 5 s, then after twice
//     as long each time, up to 10 min, over restarts too.
//   - The newest offer of a config counts; an equal one does nothing. What is held
//     and no longer offered stays until version -1 comes.
//   - The status names the version that is in place, as the file's hash says. A
//     file that was changed on the host is nobody's version: the config is UNSET
//     then, within a minute, and the next offer puts it right.
//
// Four are applied at a time. There are at most 1,024, of 4 MiB each, and 64 MiB
// of content that wait for their turn.
//
// # Files
//
// The data folder holds agent-id, lock, journal, configs/ (the config root, if no
// other one is given), held-configs/ with what is known of each config, output/
// with the kept output of commands that are not settled, and refused/ with
// reports that a coordinator found invalid: in their place a plain one went up
// that says so. One agent at a time uses it.
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
