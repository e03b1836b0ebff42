// Package store keeps the coordinator's rows under ordered keys.
//
// A Store has spaces; a space has keys in bytewise order. Commit applies a
// batch of writes whole or not at all and is durable when it returns. Watch
// tells of commits in their order. There are no closure transactions, no open
// iterators, no ids from the store and no revisions inside values, so that an
// embedded bbolt file and a database server can both honour the contract.
//
// Package storetest is the contract as tests; every engine passes it. Mem is
// the engine for tests of other packages, boltstore the one for a coordinator,
// and faulty makes any of them late, deaf or forgetful.
//
// Prepared, ReadKeys, ReadPage and Fanout are what the engines of one process
// have in common; only engines need them.
package store
