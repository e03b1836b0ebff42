package coordinator

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"google.golang.org/grpc/codes"
)

// etagOf names a row's value.
func etagOf(value []byte) string { return sha256Hex(value)[:16] }

func sha256Hex(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// checkEtag returns ETAG_MISMATCH unless an object is as the writer says: etag
// is that of now, "" when there is none. ifMatch "*" is any.
func checkEtag(kind, name, etag, ifMatch string, ifNoneMatch bool) error {
	var why string
	switch {
	case ifNoneMatch && etag != "":
		why = "it is there already"
	case ifMatch == "", ifMatch == etag, ifMatch == "*" && etag != "":
		return nil
	case etag == "":
		why = "it is not there"
	default:
		why = fmt.Sprintf("it was changed: its etag is %q; read it again", etag)
	}
	return fail(codes.FailedPrecondition, "ETAG_MISMATCH", fmt.Sprintf("%s %q: %s", kind, name, why))
}
