package northbound

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// writeJSON shows m by the rules in the package comment. The result is always
// valid JSON: what cannot be shown is told under "unreadable".
func writeJSON(m proto.Message) []byte {
	w := writer{}
	w.message(m.ProtoReflect())
	return w.buf
}

type writer struct {
	buf []byte
}

// unreadable is a value that JSON cannot hold.
type unreadable struct {
	field  string
	reason string
	bytes  []byte
}

func (u *unreadable) under(step string) *unreadable {
	u.field = step + u.field
	return u
}

func (w *writer) raw(text string) { w.buf = append(w.buf, text...) }

// comma goes before each member or element but the first.
func (w *writer) comma() {
	if last := w.buf[len(w.buf)-1]; last != '{' && last != '[' {
		w.buf = append(w.buf, ',')
	}
}

func (w *writer) key(name string) {
	w.comma()
	w.text(name)
	w.buf = append(w.buf, ':')
}

func (w *writer) message(m protoreflect.Message) {
	var bad []*unreadable
	w.raw("{")
	fields := m.Descriptor().Fields()
	page := fields.ByName("next_page_token") != nil
	for i := range fields.Len() {
		fd := fields.Get(i)
		// A page without rows still has its list: scripts iterate over it.
		rows := page && fd.IsList()
		if !m.Has(fd) && !rows || isInternal(fd) {
			continue
		}
		bad = append(bad, w.field(fd, m.Get(fd))...)
	}
	if len(bad) > 0 {
		w.unreadable(bad)
	}
	w.raw("}")
}

func (w *writer) unreadable(bad []*unreadable) {
	w.key("unreadable")
	w.raw("[")
	for _, u := range bad {
		w.comma()
		w.raw("{")
		w.key("field")
		w.text(u.field)
		w.key("reason")
		w.text(u.reason)
		if u.bytes != nil {
			w.key("base64")
			w.text(base64.StdEncoding.EncodeToString(u.bytes))
		}
		w.raw("}")
	}
	w.raw("]")
}

// field writes a member, or nothing when its value cannot be shown.
func (w *writer) field(fd protoreflect.FieldDescriptor, v protoreflect.Value) (bad []*unreadable) {
	start := len(w.buf)
	name := string(fd.Name())
	w.key(name)
	switch {
	case fd.IsMap():
		w.raw("{")
		bad = w.entries(fd, v.Map())
		w.raw("}")
	case fd.IsList():
		w.raw("[")
		for i := range v.List().Len() {
			if u := w.element(fd, v.List().Get(i)); u != nil {
				bad = append(bad, u.under("["+strconv.Itoa(i)+"]"))
			}
		}
		w.raw("]")
	case fd.Kind() == protoreflect.EnumKind && v.Enum() == 0 && !fd.HasOptionalKeyword():
		w.buf = w.buf[:start]
	default:
		if u := w.value(fd, v); u != nil {
			bad = append(bad, u)
			w.buf = w.buf[:start]
		}
	}
	for _, u := range bad {
		u.under(name)
	}
	return bad
}

// element writes an element of a list, or nothing when it cannot be shown.
func (w *writer) element(fd protoreflect.FieldDescriptor, v protoreflect.Value) *unreadable {
	start := len(w.buf)
	w.comma()
	u := w.value(fd, v)
	if u != nil {
		w.buf = w.buf[:start]
	}
	return u
}

func (w *writer) entries(fd protoreflect.FieldDescriptor, entries protoreflect.Map) (bad []*unreadable) {
	var keys []string
	for k := range entries.Range {
		keys = append(keys, k.String())
	}
	slices.Sort(keys) // the same message gives the same text
	for _, k := range keys {
		if !utf8.ValidString(k) {
			bad = append(bad, &unreadable{reason: "the key is not UTF-8", bytes: []byte(k)})
			continue
		}
		start := len(w.buf)
		w.key(k)
		if u := w.value(fd.MapValue(), entries.Get(protoreflect.ValueOfString(k).MapKey())); u != nil {
			bad = append(bad, u.under(keyStep(k)))
			w.buf = w.buf[:start]
		}
	}
	return bad
}

func (w *writer) value(fd protoreflect.FieldDescriptor, v protoreflect.Value) *unreadable {
	switch fd.Kind() {
	case protoreflect.MessageKind:
		switch fd.Message().FullName() {
		case timestampName:
			return w.timestamp(v.Message().Interface().(*timestamppb.Timestamp))
		case durationName:
			return w.duration(v.Message().Interface().(*durationpb.Duration))
		}
		w.message(v.Message())
	case protoreflect.StringKind:
		if !utf8.ValidString(v.String()) {
			return &unreadable{reason: "not UTF-8", bytes: []byte(v.String())}
		}
		if hasOption(fd, musterv1.E_CountOrPercent) && isCount(v.String()) {
			w.raw(v.String())
		} else {
			w.text(v.String())
		}
	case protoreflect.BoolKind:
		w.buf = strconv.AppendBool(w.buf, v.Bool())
	case protoreflect.Int32Kind:
		w.buf = strconv.AppendInt(w.buf, v.Int(), 10)
	case protoreflect.Uint32Kind:
		w.buf = strconv.AppendUint(w.buf, v.Uint(), 10)
	case protoreflect.DoubleKind:
		return w.double(v.Float())
	case protoreflect.EnumKind:
		name := fd.Enum().Values().ByNumber(v.Enum())
		if name == nil {
			return &unreadable{reason: fmt.Sprintf("unknown value %d; the coordinator is newer than this service", v.Enum())}
		}
		w.text(string(name.Name()))
	case protoreflect.BytesKind:
		if !hasOption(fd, musterv1.E_Json) {
			w.text(base64.StdEncoding.EncodeToString(v.Bytes()))
		} else if json.Valid(v.Bytes()) && utf8.Valid(v.Bytes()) {
			w.buf = append(w.buf, v.Bytes()...)
		} else {
			return &unreadable{reason: "not JSON", bytes: v.Bytes()}
		}
	default:
		// TestCodecKnowsEveryField keeps such a field out of the REST messages.
		return &unreadable{reason: "cannot be shown as JSON"}
	}
	return nil
}

// isCount is true for what the reader makes of a number.
func isCount(text string) bool {
	n, err := strconv.ParseUint(text, 10, 32)
	return err == nil && strconv.FormatUint(n, 10) == text
}

// double writes whole numbers without an exponent, so that sizes read well.
func (w *writer) double(f float64) *unreadable {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return &unreadable{reason: "not a finite number"}
	}
	format := byte('g')
	if f == math.Trunc(f) && math.Abs(f) <= 1<<53 {
		format = 'f'
	}
	w.buf = strconv.AppendFloat(w.buf, f, format, -1, 64)
	return nil
}

func (w *writer) timestamp(ts *timestamppb.Timestamp) *unreadable {
	if ts.CheckValid() != nil {
		return unreadableMessage("time out of range", ts)
	}
	w.text(ts.AsTime().Format(time.RFC3339Nano))
	return nil
}

func (w *writer) duration(d *durationpb.Duration) *unreadable {
	// AsDuration ends at 292 years where the message ends at 10,000.
	if d.CheckValid() != nil || !proto.Equal(durationpb.New(d.AsDuration()), d) {
		return unreadableMessage("duration out of range", d)
	}
	w.text(formatDuration(d.AsDuration()))
	return nil
}

func unreadableMessage(reason string, m proto.Message) *unreadable {
	wire, err := proto.Marshal(m)
	if err != nil {
		reason += ": " + strings.ToValidUTF8(err.Error(), "?")
	}
	return &unreadable{reason: reason, bytes: wire}
}

// text writes valid UTF-8 as a JSON string and escapes only what it must.
func (w *writer) text(text string) {
	const hex = "0123456789abcdef"
	w.buf = append(w.buf, '"')
	for i := range len(text) {
		switch b := text[i]; {
		case b == '"' || b == '\\':
			w.buf = append(w.buf, '\\', b)
		case b == '\n':
			w.buf = append(w.buf, '\\', 'n')
		case b == '\t':
			w.buf = append(w.buf, '\\', 't')
		case b < ' ':
			w.buf = append(w.buf, '\\', 'u', '0', '0', hex[b>>4], hex[b&15])
		default:
			w.buf = append(w.buf, b)
		}
	}
	w.buf = append(w.buf, '"')
}
