package main

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// shown gives a text as a terminal may show it: what is no character with a look of its own, such as escape sequences,
// line ends and marks that turn the direction of writing, is written as Go does in strings. A name in a store may be
// anybody's. JSON keeps texts as they are.
func shown(text string) string { return shownBut(text, "") }

// shownBut is shown for a text in which the characters of keep mean what they say.
func shownBut(text, keep string) string {
	var b strings.Builder
	for i := 0; i < len(text); {
		r, n := utf8.DecodeRuneInString(text[i:])
		part := text[i : i+n]
		i += n
		if r == utf8.RuneError && n == 1 || !unicode.IsGraphic(r) && !strings.ContainsRune(keep, r) {
			quoted := strconv.QuoteToASCII(part)
			part = quoted[1 : len(quoted)-1]
		}
		b.WriteString(part)
	}
	return b.String()
}
