package northbound

import (
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"
	"google.golang.org/grpc/metadata"
)

const challenge = `Bearer realm="muster"`

// bearer hands the caller's token on to the coordinator, which decides. A
// request without one is not worth a call.
func bearer(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		r := c.Request()
		token, ok := bearerToken(r.Header.Values("Authorization"))
		if !ok {
			return refuse(http.StatusUnauthorized, "UNAUTHENTICATED", "this needs the header Authorization: Bearer TOKEN").
				with("WWW-Authenticate", challenge)
		}
		ctx := metadata.AppendToOutgoingContext(r.Context(), "authorization", "Bearer "+token)
		c.SetRequest(r.WithContext(ctx))
		return next(c)
	}
}

// bearerToken wants exactly one header, and a token that gRPC metadata can carry.
func bearerToken(headers []string) (string, bool) {
	if len(headers) != 1 {
		return "", false
	}
	scheme, token, _ := strings.Cut(headers[0], " ")
	token = strings.TrimLeft(token, " ")
	for _, b := range []byte(token) {
		if b <= ' ' || b > '~' {
			return "", false
		}
	}
	return token, strings.EqualFold(scheme, "Bearer") && token != ""
}
