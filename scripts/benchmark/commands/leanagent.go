package commands

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
	"github.com/musterhq/muster/scripts/benchmark/load"
)

// leanAgent is an agent that is written by hand and does no more than it must, as
// the NATS subscribers do that it is compared with: a goroutine that blocks in
// reads, and one write for the answers to what came together. It speaks NULL, and
// does not come back when its link breaks. It keeps nothing: a command that comes
// again is answered again.
type leanAgent struct {
	fleet  *fleet
	number int
	id     string
	heart  heart
	nc     net.Conn // set before it is registered

	// Of the goroutine that reads.
	registered bool
	journal    uint32
	target     []byte // that is being said, without and with its frames
	out        []byte

	mu       sync.Mutex
	sequence uint64
}

// leanTick is how exact a beat is: those of one tick go out together. One by one
// they would wake the process 900 times a second, which costs it as much as the
// beats themselves and tells nothing of the coordinator.
const leanTick = 10 * time.Millisecond

func newLeanAgent(f *fleet, n int) *leanAgent {
	a := &leanAgent{fleet: f, number: n, id: agentID(n)}
	a.heart = heart{fleet: f, beat: a.beat, tick: leanTick}
	return a
}

func (a *leanAgent) rest() { a.heart.rest() }

// run connects once, and ends with the link.
func (a *leanAgent) run(ctx context.Context) (err error) {
	if a.nc, err = dialFrom(ctx, a.number, a.fleet.addr); err == nil {
		defer context.AfterFunc(ctx, func() { a.nc.Close() })()
		err = a.serve()
	}
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("agent %s: %w", a.id, err)
}

func (a *leanAgent) serve() error {
	defer a.leave()
	if _, err := (load.Security{}).ShakeHands(a.nc, a.id); err != nil {
		return err
	}
	if err := a.register(); err != nil {
		return err
	}
	in := bufio.NewReaderSize(a.nc, 512)
	for {
		if err := a.hear(in); err != nil {
			return err
		}
		if in.Buffered() == 0 {
			if err := a.flush(); err != nil {
				return err
			}
		}
	}
}

func (a *leanAgent) leave() {
	a.heart.stop()
	a.nc.Close()
	if a.registered {
		a.fleet.tally.registered.Add(-1)
	}
}

// answers to what the coordinator may say, by type.
var answers = map[string]func(*leanAgent, []byte) error{
	typeOf(&musterv1.Registered{}):   (*leanAgent).onRegistered,
	typeOf(&musterv1.HeartbeatAck{}): (*leanAgent).onHeartbeatAck,
	typeOf(&musterv1.Command{}):      (*leanAgent).onCommand,
	typeOf(&musterv1.TargetAck{}):    (*leanAgent).onTargetAck,
	typeOf(&musterv1.Nack{}):         (*leanAgent).onNack,
}

func typeOf(m proto.Message) string { return string(m.ProtoReflect().Descriptor().FullName()) }

// hear reads a message and answers it. One of another type is none of ours.
func (a *leanAgent) hear(in *bufio.Reader) error {
	name, err := a.frame(in, load.FlagMore)
	if err != nil {
		return err
	}
	answer := answers[string(name)] // now, for the next read is over it
	if _, err := a.frame(in, load.FlagMore); err != nil {
		return err
	}
	body, err := a.frame(in, 0)
	if err != nil || answer == nil {
		return err
	}
	return answer(a, body)
}

// frame reads the next frame of a message, and answers each PING before it.
func (a *leanAgent) frame(in *bufio.Reader, more byte) ([]byte, error) {
	for {
		flags, body, err := load.ReadFrame(in)
		if err != nil {
			return nil, err
		}
		if flags&load.FlagCommand == 0 {
			if flags&load.FlagMore != more {
				return nil, errors.New("a message came that is not three frames")
			}
			return body, nil
		}
		if ping, ok := bytes.CutPrefix(body, []byte("\x04PING")); ok && len(ping) >= 2 {
			if _, err := a.nc.Write(load.AppendFrame(nil, load.FlagCommand, append([]byte("\x04PONG"), ping[2:]...))); err != nil {
				return nil, err
			}
		}
	}
}

func (a *leanAgent) register() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sequence++
	return a.say(a.fleet.register(a.id, a.sequence, a.journal))
}

func (a *leanAgent) beat() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sequence++
	if err := a.say(&musterv1.Heartbeat{SequenceNum: a.sequence}); err != nil {
		a.fleet.tally.errors.Add(1)
	}
}

// say sends what is seldom said.
func (a *leanAgent) say(m proto.Message) error {
	body, err := proto.Marshal(m)
	if err != nil {
		return err
	}
	_, err = a.nc.Write(load.Message{[]byte(typeOf(m)), nil, body}.Append(nil))
	return err
}

func (a *leanAgent) onRegistered(body []byte) error {
	var m musterv1.Registered
	if err := proto.Unmarshal(body, &m); err != nil || a.registered { // then it was asked to tell all again
		return err
	}
	a.registered = true
	a.fleet.tally.registered.Add(1)
	a.fleet.tally.registrations.Add(1)
	a.heart.start(m.HeartbeatInterval.AsDuration())
	return nil
}

func (a *leanAgent) onHeartbeatAck(body []byte) error {
	var m musterv1.HeartbeatAck
	if err := proto.Unmarshal(body, &m); err != nil {
		return err
	}
	a.fleet.tally.beats.Add(1)
	if wantsAll(&m) {
		if err := a.flush(); err != nil {
			return err
		}
		return a.register()
	}
	return nil
}

var targetType = []byte(typeOf(&musterv1.Target{}))

// onCommand tells what a real agent tells of a program that ends at once: its end
// alone, since RECEIVED and RUNNING are left out when the end comes that soon.
func (a *leanAgent) onCommand(body []byte) error {
	id, err := commandID(body)
	if err != nil {
		return err
	}
	a.journal += 2 // it was started, and it has ended
	a.target = appendSucceeded(a.target[:0], id, a.id, a.fleet.result, a.journal, time.Now())
	a.out = load.Message{targetType, nil, a.target}.Append(a.out)
	a.fleet.tally.results.Add(1)
	return nil
}

// flush writes the answers to all that has come, at once as a Dealer does.
func (a *leanAgent) flush() error {
	if len(a.out) == 0 {
		return nil
	}
	_, err := a.nc.Write(a.out)
	a.out = a.out[:0]
	return err
}

func (a *leanAgent) onTargetAck(body []byte) error {
	n := 0
	err := eachField(body, func(number protowire.Number, _ []byte) {
		if number == 1 { // command_ids
			n++
		}
	})
	a.fleet.tally.acks.Add(int64(n))
	return err
}

func (a *leanAgent) onNack(body []byte) error {
	var m musterv1.Nack
	if err := proto.Unmarshal(body, &m); err != nil {
		return err
	}
	a.fleet.notTaken(a.id, &m)
	return nil
}
