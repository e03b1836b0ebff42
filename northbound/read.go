package northbound

import (
	"bytes"
	"encoding/base64"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

const (
	timestampName = "google.protobuf.Timestamp"
	durationName  = "google.protobuf.Duration"
)

// barred is why a body must not bring a field.
type barred struct{ code, message string }

var (
	setByServer = barred{"SET_BY_SERVER", "is set by the server; leave it out"}
	inPath      = barred{"IN_PATH", "is given by the path; leave it out"}
)

// notInBody are the fields that one kind of request must not bring.
type notInBody map[protoreflect.FullName]barred

// and is a copy with one field more.
func (n notInBody) and(field protoreflect.FullName, why barred) notInBody {
	more := maps.Clone(n)
	more[field] = why
	return more
}

// readJSON fills m, which must be empty, from one JSON object by the rules in
// the package comment. The error is a *fault; m is then half filled.
func readJSON(data []byte, m proto.Message, not notInBody) error {
	r := reader{scanner: scanner{data: data}, not: not}
	switch r.next() {
	case '{':
		if err := r.message(m.ProtoReflect()); err != nil {
			return err
		}
	default:
		if _, err := r.raw(); err != nil {
			return err
		}
		return r.fault("NOT_AN_OBJECT", "the body must be a JSON object")
	}
	return r.end()
}

type reader struct {
	scanner
	not notInBody
}

func (r *reader) message(m protoreflect.Message) error {
	return r.object(func(key string) error {
		fd := m.Descriptor().Fields().ByName(protoreflect.Name(key))
		if fd == nil || isInternal(fd) {
			return r.unknownField(m.Descriptor(), key)
		}
		if why, ok := r.not[fd.FullName()]; ok {
			return r.fault(why.code, "%s", why.message)
		}
		return r.field(m, fd)
	})
}

func (r *reader) unknownField(md protoreflect.MessageDescriptor, key string) error {
	var names []string
	for i := range md.Fields().Len() {
		fd := md.Fields().Get(i)
		if _, ok := r.not[fd.FullName()]; !ok && !isInternal(fd) {
			names = append(names, string(fd.Name()))
		}
	}
	if len(names) == 0 {
		return r.fault("UNKNOWN_FIELD", "there is no such field, nor any other here")
	}
	if near := nearest(key, names); near != "" {
		return r.fault("UNKNOWN_FIELD", "there is no such field; did you mean %q?", near)
	}
	return r.fault("UNKNOWN_FIELD", "there is no such field; the fields here are %s", strings.Join(names, ", "))
}

func (r *reader) field(m protoreflect.Message, fd protoreflect.FieldDescriptor) error {
	switch {
	case fd.IsMap():
		if r.next() != '{' {
			return r.wrongType("an object")
		}
		entries := m.Mutable(fd).Map()
		return r.object(func(key string) error {
			v, err := r.value(entries.NewValue, fd.MapValue())
			if err == nil {
				entries.Set(protoreflect.ValueOfString(key).MapKey(), v)
			}
			return err
		})
	case fd.IsList():
		if r.next() != '[' {
			return r.wrongType("an array")
		}
		list := m.Mutable(fd).List()
		return r.array(func() error {
			v, err := r.value(list.NewElement, fd)
			if err == nil {
				list.Append(v)
			}
			return err
		})
	default:
		v, err := r.value(func() protoreflect.Value { return m.NewField(fd) }, fd)
		if err == nil {
			m.Set(fd, v)
		}
		return err
	}
}

// value reads one value of fd's kind. empty makes the message to fill.
func (r *reader) value(empty func() protoreflect.Value, fd protoreflect.FieldDescriptor) (protoreflect.Value, error) {
	var none protoreflect.Value
	switch fd.Kind() {
	case protoreflect.MessageKind:
		switch fd.Message().FullName() {
		case timestampName:
			return r.timestamp()
		case durationName:
			return r.duration()
		}
		if r.next() != '{' {
			return none, r.wrongType("an object")
		}
		v := empty()
		return v, r.message(v.Message())
	case protoreflect.StringKind:
		text, err := r.str(fd)
		return protoreflect.ValueOfString(text), err
	case protoreflect.BoolKind:
		switch r.next() {
		case 't':
			return protoreflect.ValueOfBool(true), r.literal("true")
		case 'f':
			return protoreflect.ValueOfBool(false), r.literal("false")
		}
		return none, r.wrongType("true or false")
	case protoreflect.Int32Kind:
		n, err := r.integer(math.MinInt32, math.MaxInt32)
		return protoreflect.ValueOfInt32(int32(n)), err
	case protoreflect.Uint32Kind:
		n, err := r.integer(0, math.MaxUint32)
		return protoreflect.ValueOfUint32(uint32(n)), err
	case protoreflect.DoubleKind:
		return r.double()
	case protoreflect.EnumKind:
		return r.enum(fd.Enum())
	case protoreflect.BytesKind:
		return r.bytes(fd)
	}
	// TestCodecKnowsEveryField keeps such a field out of the REST messages.
	return none, r.fault("WRONG_TYPE", "cannot be given as JSON")
}

func (r *reader) wrongType(want string) error {
	switch b := r.next(); {
	case b == '"':
		return r.fault("WRONG_TYPE", "must be %s, not a string", want)
	case b == '{':
		return r.fault("WRONG_TYPE", "must be %s, not an object", want)
	case b == '[':
		return r.fault("WRONG_TYPE", "must be %s, not an array", want)
	case b == '-' || '0' <= b && b <= '9':
		return r.fault("WRONG_TYPE", "must be %s, not a number", want)
	}
	word, err := r.raw()
	if err != nil {
		return err
	}
	if string(word) == "null" {
		return r.fault("NULL", "must be %s, not null; leave the field out instead", want)
	}
	return r.fault("WRONG_TYPE", "must be %s, not %s", want, word)
}

func (r *reader) str(fd protoreflect.FieldDescriptor) (string, error) {
	want := "a string"
	if hasOption(fd, musterv1.E_CountOrPercent) {
		want = `a count or a share such as "10%"`
		if b := r.next(); b == '-' || '0' <= b && b <= '9' {
			n, err := r.integer(0, math.MaxUint32)
			return strconv.FormatInt(n, 10), err
		}
	}
	if r.next() != '"' {
		return "", r.wrongType(want)
	}
	return r.text()
}

func (r *reader) numeral(want string) (string, error) {
	if b := r.next(); b != '-' && (b < '0' || b > '9') {
		return "", r.wrongType(want)
	}
	return r.number()
}

func (r *reader) integer(low, high int64) (int64, error) {
	written, err := r.numeral("a whole number")
	if err != nil {
		return 0, err
	}
	if strings.ContainsAny(written, ".eE") {
		return 0, r.fault("WRONG_TYPE", "must be a whole number, without a point or exponent")
	}
	n, err := strconv.ParseInt(written, 10, 64)
	if err != nil || n < low || n > high {
		return 0, r.fault("OUT_OF_RANGE", "must be from %d to %d", low, high)
	}
	return n, nil
}

func (r *reader) double() (protoreflect.Value, error) {
	written, err := r.numeral("a number")
	if err != nil {
		return protoreflect.Value{}, err
	}
	f, err := strconv.ParseFloat(written, 64)
	if err != nil {
		return protoreflect.Value{}, r.fault("OUT_OF_RANGE", "is too large for a number")
	}
	return protoreflect.ValueOfFloat64(f), nil
}

func (r *reader) enum(ed protoreflect.EnumDescriptor) (protoreflect.Value, error) {
	names := valueNames(ed)
	want := "one of " + strings.Join(names, ", ")
	if r.next() != '"' {
		return protoreflect.Value{}, r.wrongType(want)
	}
	name, err := r.text()
	if err != nil {
		return protoreflect.Value{}, err
	}
	if !slices.Contains(names, name) {
		return protoreflect.Value{}, r.fault("INVALID_VALUE", "must be %s", want)
	}
	return protoreflect.ValueOfEnum(ed.Values().ByName(protoreflect.Name(name)).Number()), nil
}

// valueNames are the values of an enum that may be given.
func valueNames(ed protoreflect.EnumDescriptor) (names []string) {
	for i := range ed.Values().Len() {
		if v := ed.Values().Get(i); !strings.HasSuffix(string(v.Name()), "UNSPECIFIED") {
			names = append(names, string(v.Name()))
		}
	}
	return names
}

func (r *reader) bytes(fd protoreflect.FieldDescriptor) (protoreflect.Value, error) {
	if hasOption(fd, musterv1.E_Json) {
		text, err := r.raw()
		if err == nil && string(text) == "null" {
			err = r.fault("NULL", "must not be null; leave the field out instead")
		}
		return protoreflect.ValueOfBytes(bytes.Clone(text)), err
	}
	if r.next() != '"' {
		return protoreflect.Value{}, r.wrongType("base64 in a string")
	}
	text, err := r.text()
	if err != nil {
		return protoreflect.Value{}, err
	}
	b, err := base64.StdEncoding.Strict().DecodeString(text)
	if err != nil || strings.ContainsAny(text, "\r\n") {
		return protoreflect.Value{}, r.fault("INVALID_VALUE", "must be base64, with its padding")
	}
	return protoreflect.ValueOfBytes(b), nil
}

// rfc3339 is stricter than time.Parse, which takes a comma for the point and an
// hour of one digit.
var rfc3339 = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)$`)

func (r *reader) timestamp() (protoreflect.Value, error) {
	const want = `a time such as "2006-01-02T15:04:05Z"`
	if r.next() != '"' {
		return protoreflect.Value{}, r.wrongType(want)
	}
	text, err := r.text()
	if err != nil {
		return protoreflect.Value{}, err
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil || !rfc3339.MatchString(text) {
		return protoreflect.Value{}, r.fault("INVALID_VALUE", "must be %s", want)
	}
	ts := timestamppb.New(t)
	if err := ts.CheckValid(); err != nil {
		return protoreflect.Value{}, r.fault("OUT_OF_RANGE", "must be within the years 1 to 9999")
	}
	return protoreflect.ValueOfMessage(ts.ProtoReflect()), nil
}

func (r *reader) duration() (protoreflect.Value, error) {
	if r.next() != '"' {
		return protoreflect.Value{}, r.wrongType(`a duration such as "90s" or "1h30m"`)
	}
	text, err := r.text()
	if err != nil {
		return protoreflect.Value{}, err
	}
	d, err := parseDuration(text)
	if err != nil {
		return protoreflect.Value{}, r.fault("INVALID_VALUE", "%v", err)
	}
	return protoreflect.ValueOfMessage(durationpb.New(d).ProtoReflect()), nil
}

func hasOption(fd protoreflect.FieldDescriptor, option protoreflect.ExtensionType) bool {
	return proto.GetExtension(fd.Options(), option).(bool)
}

func isInternal(fd protoreflect.FieldDescriptor) bool {
	return hasOption(fd, musterv1.E_Internal)
}
