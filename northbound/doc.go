// Package northbound is the REST service: Echo routes over the gRPC services
// of proto/muster/v1.
//
// It holds no state and no rules of its own. Every request becomes one gRPC
// call over the connection given to New, with the caller's bearer token as
// metadata (a few become two: content, followed output, a version that is posted
// unless it is the same); what the coordinator answers is shown as JSON, and what
// it refuses as a problem (RFC 9457). So authorisation, limits and audit live behind that
// connection, once, for REST and gRPC alike.
//
// # Routes
//
//	GET  /healthz, /readyz
//	GET  /metrics                                    what Config.Metrics tells
//	GET  /v1/agents                                  ?page_size= &page_token=, as every list
//	GET  /v1/agents/ID                               with its queue and plugins
//	DELETE /v1/agents/ID                             204: it is forgotten, what waits for it ends
//	PUT  /v1/agents/ID/maintenance                   {"maintenance": true} holds its queue, false frees it
//	GET  /v1/agents/ID/configs                       what it shall hold and holds, and its INSTANCE document
//	GET  /v1/commands                                ?order=asc|desc &filter=CEL
//	POST /v1/commands                                202 and the command; Idempotency-Key
//	POST /v1/commands/preview                        the same body; who would get it
//	GET  /v1/commands/ID                             ?wait=30s
//	POST /v1/commands/ID/cancel, /pause, /resume     {"reason": "why"} or no body
//	GET  /v1/commands/ID/targets                     ?state=FAILED,LOST
//	GET  /v1/commands/ID/targets/AGENT
//	GET  /v1/commands/ID/targets/AGENT/output        ?stream=stdout|stderr &follow=1
//	GET  /v1/groups
//	POST /v1/groups/preview                          who would be in, who would join and leave
//	GET, PUT, DELETE /v1/groups/NAME                 PUT ?dry_run=1
//	GET  /v1/groups/NAME/agents
//	GET  /v1/configs
//	POST /v1/configs/preview                         who would get what by these bindings
//	GET, PUT, DELETE /v1/configs/NAME                PUT ?dry_run=1 &keep_bindings=1
//	GET  /v1/configs/NAME/versions                   newest first; ?order=asc
//	POST /v1/configs/NAME/versions                   201 and Location; see Versions
//	GET  /v1/configs/NAME/versions/N                 without its content
//	GET  /v1/configs/NAME/versions/N/content         its bytes
//	GET  /v1/configs/NAME/diff                       ?from=1&to=2
//	GET  /v1/configs/NAME/status                     by agent; ?status=FAILED,APPLYING
//	GET  /v1/configs/NAME/rollouts                   newest first; ?order=asc
//	POST /v1/configs/NAME/rollouts                   202 and Location; Idempotency-Key, ?dry_run=1
//	GET  /v1/rollouts                                of all configs
//	GET  /v1/rollouts/ID                             ?wait=30s
//	GET  /v1/rollouts/ID/targets                     ?state=FAILED,VANISHED
//	POST /v1/rollouts/ID/pause, /resume, /abort      {"reason": "why"} or no body
//	GET  /v1/events                                  ?kinds=agent,command,target,group,config,config_status,rollout
//	GET  /v1/keys                                    ?state=PENDING
//	GET  /v1/keys/ID
//	POST /v1/keys/ID/approve                         {"agent_id": "web-1"}, or no body: the id that it asks for
//	POST /v1/keys/ID/revoke
//
// HEAD is answered where GET is, OPTIONS everywhere. Each parameter is known
// and given once; where it takes several values they are separated by commas.
// All but the first line need a bearer token, /metrics unless
// Config.OpenMetrics: it tells the fleet's size and what goes wrong in it. The
// coordinator judges that token, too: while it cannot be asked, they are 503.
//
// POST of a command or a rollout makes a new one each time, unless an
// Idempotency-Key says that it is the same; POST of a version makes a new one
// unless unless_same is asked. All others may be repeated as they are; they take
// no notice of that header. Control of a command or a rollout that has ended is
// 409.
//
// # Groups, configs and their changes
//
// GET and PUT of one group or config answer with an ETag, of what operators set
// and not of the counts beside it. PUT and DELETE take it as If-Match (one, or *:
// it must exist), PUT takes If-None-Match: * (it must not): 412 when that does
// not hold. PUT is 201 with If-None-Match and else 200, whether it was there
// before or not. With dry_run all is checked and answered, and nothing changed.
//
// # Versions
//
// A version is posted as JSON: content in base64, file and note. Or its content
// is the body itself, as application/octet-stream, and the rest are parameters:
//
//	?path=nginx.conf &mode=0640 &timeout=10s &note=why &check_cmd=["nginx","-t","-c","{}"] &reload_cmd=[…]
//
// In both forms the parameters base_version (the latest version that was seen:
// 409 if there is a newer one), unless_same (200 and the latest version if it is
// the same) and dry_run, with the kind of a config that is not there yet, say
// how. The content of a version has its SHA-256 as ETag; If-None-Match with it
// is 304.
//
// # Output
//
// Of long output the start (head) and the end (tail) are kept. Without Range
// the answer is what is kept, one after the other; the headers Muster-Output-…
// tell the size, what is kept, and the head where something is missing.
//
// A Range (one, in bytes) is of the output as the program wrote it: 206 with
// its bytes, and 416 if it touches what is not kept; the detail names the gap.
// Until the target is final nobody knows where the kept bytes lie; so long
// Range is ignored, and Accept-Ranges is "none".
//
// With follow the answer goes on until the target is final and then ends. When
// it ends for another reason, such as a stop of the server, the connection is
// cut: a client can tell, and ask again.
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
// value of the wrong type or out of range, null, a field that the server sets or
// the path gives, nesting deeper than 100 and anything after the value are
// refused, with the field's path. A field marked (muster.v1.json) holds any JSON value but null;
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
// A body is at most 1 MiB, or 4 MiB of content (plain, or as base64), and arrives within 10 s; headers are at most 32 KiB
// and arrive within 5 s; an idle connection lives 60 s; a client that takes
// nothing for 10 s is cut. A page holds at most 1,000 rows (page_size, default
// 50), ?wait= is at most 60 s; more than that means that much.
package northbound
