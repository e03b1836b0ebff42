// Package northbound is the REST service: Echo routes over the gRPC services
// of proto/muster/v1.
//
// It holds no state and no rules of its own. Every request becomes one gRPC
// call over the connection given to New, with the caller's bearer token as
// metadata; what the coordinator answers is shown as JSON, and what it refuses
// as a problem (RFC 9457). So authorisation, limits and audit live behind that
// connection, once, for REST and gRPC alike.
//
// # JSON
//
// The messages of proto/muster/v1 are the model; the codec (read.go, write.go)
// follows their descriptors. Fields have their proto names, enums their short
// names ("QUEUE"), times are RFC 3339 in UTC, durations are written as people
// do ("90s", "1h30m", "7d"). Zero values and unspecified enums are left out,
// except scalars declared optional and the list of a page.
//
// Reading is strict, on every route: an unknown field, a key given twice, a
// value of the wrong type or out of range, null, a field that the server sets,
// nesting deeper than 100 and anything after the value are refused, with the
// field's path. A field marked (muster.v1.json) holds any JSON value but null;
// its bytes pass through unchanged in both directions.
//
// Writing never fails. A stored value that JSON cannot hold (a time out of
// range, text that is not UTF-8, an unknown enum number) is left out of its
// message and told in a list beside it:
//
//	"unreadable": [{"field": "end_time", "reason": "time out of range", "base64": "CP//////////fw=="}]
//
// # Limits
//
// A body is at most 1 MiB and arrives within 10 s; headers are at most 32 KiB
// and arrive within 5 s; an idle connection lives 60 s; a client that takes
// nothing for 10 s is cut. A page holds at most 1,000 rows (page_size, default
// 50), ?wait= is at most 60 s; more than that means that much.
package northbound
