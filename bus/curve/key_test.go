package curve

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"golang.org/x/crypto/nacl/box"
)

// The test keys of libzmq's zmq_curve(7).
var manualKeys = []struct{ z85, hex string }{
	{"Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID", "BB88471D65E2659B30C55A5321CEBB5AAB2B70A398645C26DCA2B2FCB43FC518"},
	{"rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7", "54FCBA24E93249969316FB617C872BB0C1D1FF14800427C594CBFACF1BC2D652"},
	{"D:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs", "7BB864B489AFA3671FBE69101F94B38972F24816DFB01B51656B3FEC8DFD0888"},
	{"JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6", "8E0BDD697628B91D8F245587EE95C5B04D48963F79259877B49CD9063AEAD3B7"},
}

func TestZ85(t *testing.T) {
	for _, key := range manualKeys {
		raw, err := decodeZ85(key.z85)
		if err != nil || hex.EncodeToString(raw[:]) != strings.ToLower(key.hex) {
			t.Errorf("%s is %x, error %v; want %s", key.z85, raw, err, key.hex)
		}
		if text := encodeZ85(&raw); text != key.z85 {
			t.Errorf("%x becomes %s", raw, text)
		}
	}
}

func TestKeyPair(t *testing.T) {
	for i := range 2 {
		secret, err := ParseSecretKey(manualKeys[2+i].z85)
		if err != nil {
			t.Fatal(err)
		}
		if got := secret.Public().String(); got != manualKeys[i].z85 {
			t.Errorf("public key %s, want %s", got, manualKeys[i].z85)
		}
		if secret.IsZero() || !(SecretKey{}).IsZero() {
			t.Error("IsZero is wrong")
		}
		if got := secret.Z85(); got != manualKeys[2+i].z85 {
			t.Errorf("secret key %s, want %s", got, manualKeys[2+i].z85)
		}
	}
}

func TestKeyErrorsSayWhatIsWrong(t *testing.T) {
	good := manualKeys[0].z85
	spelled := func(last byte) string {
		raw := [keySize]byte(bytes.Repeat([]byte{0xff}, keySize))
		raw[0], raw[31] = last, 0x7f
		return encodeZ85(&raw)
	}
	for _, c := range []struct{ text, want string }{
		{"", "public key: a Z85 key has 40 characters, this has 0"},
		{good + "\n", "public key: a Z85 key has 40 characters, this has 41"},
		{good[:39], "public key: a Z85 key has 40 characters, this has 39"},
		{good[:6] + " " + good[7:], "public key: character 7 is not one of Z85's"},
		{good[:39] + "\xff", "public key: character 40 is not one of Z85's"},
		{good[:5] + "#####" + good[10:], "public key: characters 6 to 10 stand for more than four bytes"},
		{spelled(0xed), "public key: " + errSpelling.Error()},
		{spelled(0xff), "public key: " + errSpelling.Error()},
		{strings.Repeat("0", 40), "public key: " + errLowOrder.Error()},
	} {
		if _, err := ParsePublicKey(c.text); err == nil || err.Error() != c.want {
			t.Errorf("%q: error %v; want %s", c.text, err, c.want)
		}
	}
	if _, err := ParseSecretKey(good[:39]); err == nil || strings.Contains(err.Error(), good[:5]) {
		t.Errorf("error %v; want one without the text", err)
	}
	if _, err := ParseSecretKey(strings.Repeat("0", 40)); err == nil {
		t.Error("the secret key of zeros is taken")
	}
}

// lowOrder are the points that share the same secret with everybody.
var lowOrder = []string{
	"0000000000000000000000000000000000000000000000000000000000000000",
	"0100000000000000000000000000000000000000000000000000000000000000",
	"e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
	"5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
	"ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f", // p-1
	"edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f", // p, that is 0
	"eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f", // p+1, that is 1
	"0000000000000000000000000000000000000000000000000000000000000080", // 0 with the bit that X25519 ignores
}

func TestKeysThatNoPeerHas(t *testing.T) {
	_, secret := newPair(t)
	for _, text := range lowOrder {
		raw, err := hex.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		key := PublicKey(raw)
		if _, err := secret.shared(&key); err == nil {
			t.Errorf("%s shares a key", text)
		}
		if _, err := ParsePublicKey(key.String()); err == nil {
			t.Errorf("%s is parsed", text)
		}
	}
}

func TestSharedKeyIsThatOfBox(t *testing.T) {
	public, _ := newPair(t)
	_, secret := newPair(t)
	var want [32]byte
	box.Precompute(&want, (*[32]byte)(&public), (*[32]byte)(secret.key().Bytes()))
	if got, err := secret.shared(&public); err != nil || *got != want {
		t.Errorf("%x, error %v; want %x", got, err, want)
	}
}

func TestPublicKeyAsText(t *testing.T) {
	public, _ := newPair(t)
	data, err := json.Marshal(map[PublicKey]PublicKey{public: public})
	if err != nil {
		t.Fatal(err)
	}
	var back map[PublicKey]PublicKey
	if err := json.Unmarshal(data, &back); err != nil || back[public] != public {
		t.Errorf("%s comes back as %v, error %v", data, back, err)
	}
	if err := json.Unmarshal([]byte(`{"x":"y"}`), &back); err == nil {
		t.Error("y is a key")
	}
}

func TestSecretKeyDoesNotPrint(t *testing.T) {
	_, secret := newPair(t)
	raw := secret.key().Bytes()
	nested := struct {
		name string
		key  SecretKey
		keys []SecretKey
	}{"a", secret, []SecretKey{secret}}
	shared := *NewServer(secret).Handshake()

	var printed strings.Builder
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%o", "%b", "%c", "%t", "%p"} {
		for _, value := range []any{secret, &secret, nested, &nested, shared, &shared} {
			fmt.Fprintf(&printed, verb+"\n", value)
		}
	}
	slog.New(slog.NewTextHandler(&printed, nil)).Info("key", "secret", secret, "nested", nested)
	slog.New(slog.NewJSONHandler(&printed, nil)).Info("key", "secret", secret, "nested", nested)
	fmt.Fprintln(&printed, secret.String(), secret)

	text := printed.String()
	for _, leak := range []string{
		secret.Z85(), hex.EncodeToString(raw), strings.ToUpper(hex.EncodeToString(raw)),
		strings.Trim(fmt.Sprint(raw[:8]), "[]"), strings.Trim(fmt.Sprintf("%#v", raw[:8]), "[]byte{}"), string(raw),
	} {
		if strings.Contains(text, leak) {
			t.Errorf("the key is printed as %q", leak)
		}
	}
	if !strings.Contains(text, "***") {
		t.Errorf("no mask in %s", text)
	}
}
