// Package page looks at the page of a store with a real browser, headless Chromium: of a store of 200 checkpoints, with
// a real process being restored. Pictures of each view are left in build/screenshots.
//
// -page.many sets how many checkpoints the large store has. The time that its page takes is logged (make bench-page).
package page
