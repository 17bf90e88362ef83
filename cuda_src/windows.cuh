// Long pieces, in windows. A piece is long if a whole aligned word of 32 bytes lies in it behind its first byte; others have
// at most 63 bytes. Long pieces that are no token are cut into their tokens *before* the vocabulary is asked: each token
// then counts as a piece, and every one is found.
//
// Window w is the part of the piece in the 64 bytes from word w on. Its BPE is told by the bits at which its tokens begin.
// Neighbouring windows share the 32 bytes of a word; where a token of both has the same span there, the two results join
// (merges.py, lemma B): the bits before it are the left window's, those from it on the right one's. Where no token agrees
// the word is *open* (units.cuh).
#pragma once
#include "marks.cuh"
#include "pairs.cuh"
#include "vocabulary.cuh"

constexpr u32 WINDOW = 64;

struct LongPiece {
    u32 begin, end;
    u32 first;  // the number of its first window among all
    u32 unused;
};
HD u32 first_word(const LongPiece &p) { return p.begin >> 5; }
HD u32 last_word(const LongPiece &p) { return (p.end - 1) >> 5; }
HD u32 window_count(const LongPiece &p) { return last_word(p) - first_word(p); }
HD u32 window_begin(const LongPiece &p, u32 word) { return word * 32 > p.begin ? word * 32 : p.begin; }
HD u32 window_end(const LongPiece &p, u32 word) { return word * 32 + WINDOW < p.end ? word * 32 + WINDOW : p.end; }

// Whether a piece is long and first seen at `word`: the word before has its beginning, this one has none.
HD bool begins_long(const Marks &m, u32 word, u32 n, u32 &begin) {
    if (!word || word * 32ull >= n || marks_at(m, word)) return false;
    u32 before = marks_at(m, word - 1);
    if (!before) return false;
    begin = (word - 1) * 32 + highest(before);
    return true;
}
// Runs of one byte never join, so such windows are not encoded: 0 says that nothing is known.
HD bool one_byte(const u8 *text, u32 begin, u32 end) {
    u64 all = text[begin] * 0x0101010101010101ull;
    for (u32 at = begin; at < end; at += 8)
        if (first_bytes(load_8(text + at), end - at) != first_bytes(all, end - at)) return false;
    return true;
}
// The bits of an inner word in its two windows -> the joined bits. False: open.
// The left window ends with the word, and so does its last token; of the right one bit 32 is asked as well.
HD bool join(u32 left, u64 right, u32 &bits) {
    u64 a = left | 1ull << 32, b = right & 0x1ffffffffull;
    for (u32 both = left & (u32)right; both; both &= both - 1) {
        u32 cut = lowest(both);
        u64 na = a >> cut & ~1ull, nb = b >> cut & ~1ull;
        if (!nb || (na & (~na + 1)) != (nb & (~nb + 1))) continue;  // the tokens that begin here have other ends
        u32 below = (1u << cut) - 1;
        bits = (left & below) | ((u32)right & ~below);
        return true;
    }
    return false;
}
// What is known of a word of a long piece; at the piece's ends a window is right by itself.
struct Joined {
    bool known;
    u32 bits;
};
HD Joined joined(const LongPiece &p, const u64 *windows, u32 word) {
    Joined j = {false, 0};
    const u64 *own = windows + p.first + (word - first_word(p));
    if (word == first_word(p)) {
        j.known = own[0] != 0;
        j.bits = (u32)own[0];
    } else if (word == last_word(p)) {
        j.known = own[-1] != 0;
        j.bits = (u32)(own[-1] >> 32);
    } else if (own[0] && own[-1]) {
        j.known = join((u32)(own[-1] >> 32), own[0], j.bits);
    }
    return j;
}
