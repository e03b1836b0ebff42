package coordinator

import (
	"cmp"
	"context"
	"fmt"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/musterhq/muster/bus"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// maxOfferings bounds the bytes of what is kept encoded.
const maxOfferings = 64 << 20

// offerings are the offers, each encoded once for all the agents that get it.
// Those made first are dropped when they become too many, and made again when
// they are needed.
type offerings struct {
	k *configs

	mu    sync.Mutex // also held while one is made
	made  map[offerKey]*offering
	order []offerKey
	bytes int
}

// offering is one offer.
type offering struct {
	frames  bus.Frames
	size    uint32 // of the content
	content []byte // of a merged document
}

func newOfferings(k *configs) *offerings {
	return &offerings{k: k, made: map[offerKey]*offering{}}
}

// get returns an offer. want is what the agent shall hold.
func (o *offerings) get(ctx context.Context, key offerKey, want *wantSet) (*offering, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if x := o.made[key]; x != nil {
		return x, nil
	}
	x, err := o.make(ctx, key, want)
	if err != nil {
		return nil, err
	}
	o.made[key] = x
	o.order = append(o.order, key)
	o.bytes += x.bytes()
	for o.bytes > maxOfferings && len(o.order) > 1 {
		old := o.order[0]
		o.order = o.order[1:]
		o.bytes -= o.made[old].bytes()
		delete(o.made, old)
	}
	return x, nil
}

// offeringCost is what one costs beside its content.
const offeringCost = 1 << 10

func (x *offering) bytes() int {
	n := offeringCost + len(x.content)
	if x.size <= maxInlineConfig {
		n += int(x.size)
	}
	return n
}

func (o *offerings) make(ctx context.Context, key offerKey, want *wantSet) (*offering, error) {
	m := &musterv1.ConfigOffer{Kind: key.kind, Name: key.name, Version: key.version}
	x := &offering{}
	var err error
	switch {
	case key.version == deletedVersion:
	case key.kind == musterv1.Config_INSTANCE:
		err = o.fillDocument(ctx, m, x, want)
	default:
		err = o.fillFile(ctx, m)
	}
	if err != nil {
		return nil, err
	}
	x.size = m.Size
	if x.frames, err = bus.Seal(nil, m); err != nil {
		return nil, fmt.Errorf("offer of config %q: %w", key.name, err)
	}
	o.k.m.encodings.Inc()
	return x, nil
}

func (o *offerings) fillFile(ctx context.Context, m *musterv1.ConfigOffer) error {
	v, err := o.k.version(ctx, configRef{m.Name, m.Version})
	if err != nil {
		return err
	}
	m.File, m.Size, m.Sha256 = v.File, v.Size, v.Sha256
	if v.Size > maxInlineConfig {
		return nil
	}
	m.Inline = true
	m.Content, err = o.k.content(ctx, v)
	return err
}

func (o *offerings) fillDocument(ctx context.Context, m *musterv1.ConfigOffer, x *offering, want *wantSet) error {
	doc, err := o.k.document(ctx, want)
	if err != nil {
		return err
	}
	m.File = proto.CloneOf(doc.file)
	m.File.Path = cmp.Or(m.File.Path, instanceName)
	m.Size, m.Sha256 = uint32(len(doc.content)), sha256Hex(doc.content)
	if m.Inline = len(doc.content) <= maxInlineConfig; m.Inline {
		m.Content = doc.content
	} else {
		x.content = doc.content
	}
	return nil
}
