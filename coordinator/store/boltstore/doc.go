// Package boltstore is a store.Store in one bbolt file.
//
// One goroutine commits. It merges the batches that wait into one transaction,
// so that many callers share one fsync, and publishes to the watchers in commit
// order. Each batch has its own revision and fails on its own conditions.
//
// Open checks the file before bbolt maps it, because bbolt ends the process on
// a file cut short and takes an empty one for a new one. It never changes or
// replaces a file that fails the check. A damaged page met later fails the
// requests that need it with ErrUnavailable. So does a full disk, which leaves
// reads as they were and lets commits through again once there is room.
//
// Check and Compact are for a file that no coordinator has open: they take the
// lock, or say that it is held. They read the file page by page and not through
// bbolt, so that a damaged one gives a report and not the end of the process.
//
// Readers may see a commit a moment before its fsync is done; watchers and the
// caller of Commit hear of it after.
//
// The file has one bucket for each space, named "rows/" and the space, with the
// revision in 8 bytes before each value, and a bucket "muster" whose sequence
// is the last revision and whose record "format" says whose file this is.
package boltstore
