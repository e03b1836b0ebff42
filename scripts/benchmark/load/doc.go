// Package load makes many peers talk to one server, and costs little itself.
//
// A [Fleet] is some thousand connections to a server. Each keeps a number of
// 100-byte messages under way: it sends the next one when an answer has come.
// The answers are read frame by frame and compared with what was sent.
//
// There are no goroutines per peer: a few threads wait in epoll and read and
// write without telling Go's scheduler, so that what is measured is the server.
//
// [Security.ShakeHands], [Message.Append] and [ReadFrame] are for those who keep
// their connections themselves.
package load
