package curve

import (
	"maps"
	"strings"
	"testing"
)

func TestMetadata(t *testing.T) {
	const socketType = "\x0bSocket-Type\x00\x00\x00\x06DEALER"
	for _, c := range []struct {
		name, data string
		want       Metadata
	}{
		{"none", "", Metadata{}},
		{"one", socketType, Metadata{"Socket-Type": "DEALER"}},
		{"two", socketType + "\x08Identity\x00\x00\x00\x00", Metadata{"Socket-Type": "DEALER", "Identity": ""}},
		{"any case", "\x0bsOCKET-tYPE\x00\x00\x00\x06DEALER", Metadata{"Socket-Type": "DEALER"}},
		{"all name characters", "\x06aZ0_.+\x00\x00\x00\x01\xff", Metadata{"Az0_.+": "\xff"}},
		{"longest name", "\xff" + strings.Repeat("A", 255) + "\x00\x00\x00\x00", Metadata{"A" + strings.Repeat("a", 254): ""}},
	} {
		got, err := parseMetadata([]byte(c.data))
		if err != nil || !maps.Equal(got, c.want) {
			t.Errorf("%s: %q, error %v; want %q", c.name, got, err, c.want)
		}
		data, err := got.encode()
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if again, err := parseMetadata(data); err != nil || !maps.Equal(again, c.want) {
			t.Errorf("%s comes back as %q, error %v", c.name, again, err)
		}
	}
}

func TestBadMetadata(t *testing.T) {
	for name, data := range map[string]string{
		"name cut":              "\x0bSocket-Typ",
		"no value":              "\x0bSocket-Type",
		"size cut":              "\x01a\x00\x00\x00",
		"value cut":             "\x01a\x00\x00\x00\x02b",
		"value of 4 GiB":        "\x01a\xff\xff\xff\xffb",
		"value of 2 GiB":        "\x01a\x80\x00\x00\x00b",
		"empty name":            "\x00\x00\x00\x00\x00",
		"blank in name":         "\x03a b\x00\x00\x00\x00",
		"line break in name":    "\x02a\n\x00\x00\x00\x00",
		"byte over 127":         "\x01\xc3\x00\x00\x00\x00",
		"twice":                 "\x01a\x00\x00\x00\x00\x01a\x00\x00\x00\x00",
		"twice in another case": "\x08identity\x00\x00\x00\x01x\x08IDENTITY\x00\x00\x00\x01y",
		"something after":       "\x01a\x00\x00\x00\x00\x00",
	} {
		if got, err := parseMetadata([]byte(data)); err == nil {
			t.Errorf("%s: taken as %q", name, got)
		}
	}
}
