package curve

import (
	"encoding/binary"
	"fmt"
)

// z85Digits are the digits of RFC 32, in order: five of them hold four bytes.
const z85Digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"

// z85Values maps a character to its digit, or to notZ85.
var z85Values = func() (values [256]byte) {
	for i := range values {
		values[i] = notZ85
	}
	for i := range len(z85Digits) {
		values[z85Digits[i]] = byte(i)
	}
	return values
}()

const notZ85 = 0xff

// keyDigits is the length of a key in Z85.
const keyDigits = keySize / 4 * 5

func encodeZ85(key *[keySize]byte) string {
	text := make([]byte, keyDigits)
	for i := range keySize / 4 {
		value := binary.BigEndian.Uint32(key[4*i:])
		for j := 4; j >= 0; j-- {
			text[5*i+j] = z85Digits[value%85]
			value /= 85
		}
	}
	return string(text)
}

// decodeZ85 reads a key. Its errors give positions, never characters: the text
// may be a secret.
func decodeZ85(text string) (key [keySize]byte, err error) {
	if len(text) != keyDigits {
		return key, fmt.Errorf("a Z85 key has %d characters, this has %d", keyDigits, len(text))
	}
	for i := range keySize / 4 {
		var value uint64
		for j := range 5 {
			digit := z85Values[text[5*i+j]]
			if digit == notZ85 {
				return key, fmt.Errorf("character %d is not one of Z85's", 5*i+j+1)
			}
			value = value*85 + uint64(digit)
		}
		if value > 0xffffffff {
			return key, fmt.Errorf("characters %d to %d stand for more than four bytes", 5*i+1, 5*i+5)
		}
		binary.BigEndian.PutUint32(key[4*i:], uint32(value))
	}
	return key, nil
}
