package coordinator

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/musterhq/muster/coordinator/store"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// filterTime is how long a page looks for commands that pass its filter; then
// it ends with what it has, and the token goes on from there.
const filterTime = 200 * time.Millisecond

// commandPage is one answer to ListCommands in the making.
type commandPage struct {
	s      *commandService
	filter *expression // nil: all
	size   int
	bytes  int
	found  []*musterv1.Command
	last   string // id of the last command looked at
}

func (s *commandService) ListCommands(ctx context.Context, req *musterv1.ListCommandsRequest) (*musterv1.ListCommandsResponse, error) {
	if req.Order == musterv1.Order_ORDER_UNSPECIFIED {
		req.Order = musterv1.Order_DESC
	}
	list := "commands/" + req.Order.String() + "/" + req.Filter // a token of another list is none of this one
	last, err := pageStart(req.PageToken, list)
	if err != nil {
		return nil, err
	}
	p := &commandPage{s: s, size: pageSize(req.PageSize), last: last}
	if req.Filter != "" {
		if p.filter, err = compile(commandEnv(), "filter", req.Filter); err != nil {
			return nil, err
		}
	}
	more, err := p.fill(ctx, req.Order != musterv1.Order_ASC)
	if err != nil {
		return nil, err
	}
	resp := &musterv1.ListCommandsResponse{Commands: p.found}
	if more {
		resp.NextPageToken = pageToken(list, p.last)
	}
	return resp, nil
}

// fill looks through the history, a stretch at a time, until the page is full,
// its time is over or the history ends. It reports whether there is more.
func (p *commandPage) fill(ctx context.Context, newestFirst bool) (more bool, err error) {
	until := time.Now().Add(filterTime)
	r := store.Range{Prefix: []byte(cmdPrefix), Limit: p.size, Reverse: newestFirst}
	if p.filter != nil {
		r.Limit = 200
	}
	for {
		if p.last != "" {
			r.After = cmdKey(p.last)
		}
		page, err := p.s.c.store.Scan(ctx, spaceHistory, r)
		if err != nil {
			return false, err
		}
		full, err := p.take(ctx, page.Items)
		if err != nil {
			return false, err
		}
		if full || !page.More || time.Now().After(until) {
			return full || page.More, nil
		}
	}
}

// take adds those of a stretch that pass the filter, and reports whether the
// page was full before the stretch ended.
func (p *commandPage) take(ctx context.Context, heads []store.KV) (full bool, err error) {
	rest, err := p.s.endings(ctx, heads)
	if err != nil {
		return false, err
	}
	for i, kv := range heads {
		if len(p.found) == p.size || p.bytes > maxPageBytes {
			return true, nil
		}
		id, _ := splitKey(kv.Key, cmdPrefix)
		p.last = id
		cmd, _, open := p.s.c.ledger.command(id)
		if !open {
			if cmd, err = stored(kv, rest[2*i], rest[2*i+1]); err != nil {
				p.s.c.log.Error("command not read; it is left out of the list", "cmd", id, "err", err)
				continue
			}
		}
		ok, err := p.passes(ctx, cmd)
		if err != nil {
			return false, err
		}
		if ok {
			p.found = append(p.found, cmd)
			p.bytes += proto.Size(cmd)
		}
	}
	return false, nil
}

func (p *commandPage) passes(ctx context.Context, cmd *musterv1.Command) (bool, error) {
	if p.filter == nil {
		return true, nil
	}
	vars := map[string]any{
		"id": cmd.Id, "type": cmd.Type, "name": cmd.Name, "state": cmd.State.String(), "labels": nonNil(cmd.Labels),
		"create_time": cmd.CreateTime.AsTime(), "agents": []string{},
	}
	if p.filter.refs["agents"] {
		agents, err := p.s.c.targets(ctx, cmd.Id)
		if err != nil {
			return false, err
		}
		vars["agents"] = agents
	}
	ok, err := p.filter.matches(ctx, vars)
	if err != nil && ctx.Err() == nil {
		return false, invalid("filter", "%v", err)
	}
	return ok, err
}

// endings reads the summary and the last decision of each of these commands.
func (s *commandService) endings(ctx context.Context, heads []store.KV) ([]store.KV, error) {
	keys := make([][]byte, 0, 2*len(heads))
	for _, kv := range heads {
		id, _ := splitKey(kv.Key, cmdPrefix)
		keys = append(keys, sumKey(id), ctlKey(id))
	}
	if len(keys) == 0 {
		return nil, nil
	}
	return s.c.store.Get(ctx, spaceHistory, keys...)
}
