// What the windows of long pieces leave open, and what turns out wrong beside it.
//
// The tokens of a long piece are the bits of the mask. Two neighbours are *settled* where the BPE of their text is those
// two; when all are, the tokens are those of the piece (merges.py, lemma B). Each pass takes the words that are marked for
// it, extends every row of them to the nearest tokens beyond, and encodes such a *unit* anew. Inside, neighbours are then
// settled (lemma A); at its ends they are asked, and around an end that is not settled the next pass takes more words: sixteen
// times as far. So passes are few, work stays where the trouble is, and the last resort is the whole piece.
#pragma once
#include "rounds.cuh"

constexpr u32 SMALL_UNIT = 256;  // bytes: one warp's
constexpr u32 BLOCK_UNIT = 16;   // bytes a thread of one block; several blocks take longer ones

struct Unit {
    u32 begin, end;
    u32 piece;  // the long piece that it is in
};
// A word of a long piece among the words of all: pieces may share a word of the text, not a slot.
HD u32 first_slot(const LongPiece &p, u32 piece) { return p.first + piece; }
HD u32 slots_of(u64 longs) { return (u32)longs + (u32)(longs >> 32); }

// The bits of `word` inside [begin, end).
HD u32 within(u32 begin, u32 end, u32 word) {
    u32 from = word * 32, low = begin > from ? begin - from : 0, high = end < from + 32 ? end - from : 32;
    if (begin >= from + 32 || end <= from) return 0;
    return (NONE << low) & (NONE >> (32 - high));
}
HD u32 tokens_at(const Marks &m, const LongPiece &p, u32 word) { return marks_at(m, word) & within(p.begin, p.end, word); }

// The words of one piece in a pass: `marked` has the pass in which a word was last to be encoded anew.
struct Marked {
    const u32 *marked;  // of the piece's first word
    u32 pass;
    HD bool has(const LongPiece &p, u32 word) const { return marked[word - first_word(p)] == pass; }
};
// Whether a row of marked words begins with `word`, rows without a token between them counted as one; then where its unit
// begins: the last token before it.
HD bool unit_begins(const Marks &m, const LongPiece &p, const Marked &marked, u32 word, u32 &begin) {
    begin = p.begin;
    if (!marked.has(p, word)) return false;
    for (u32 k = word; k-- > first_word(p);) {
        if (marked.has(p, k)) return false;
        if (u32 bits = tokens_at(m, p, k)) {
            begin = k * 32 + highest(bits);
            return true;
        }
    }
    return true;
}
// Whether the row that a word before this one belongs to ends here, and where its unit ends.
HD bool unit_ends(const Marks &m, const LongPiece &p, const Marked &marked, u32 word, u32 &end) {
    end = p.end;
    if (word > last_word(p)) return true;
    if (marked.has(p, word)) return false;
    u32 bits = tokens_at(m, p, word);
    if (bits) end = word * 32 + lowest(bits);
    return bits;
}
// The words around an end that is not settled. Merges go from the left, so what is wrong mostly lies to its right.
HD void around(const LongPiece &p, u32 at, u32 pass, u32 &first, u32 &last) {
    u32 shift = pass < 6 ? 4 * pass - 3 : 21, left = 16u << shift, right = 64u << shift;
    first = (at - p.begin > left ? at - left : p.begin) >> 5;
    last = (p.end - 1 - at > right ? at + right : p.end - 1) >> 5;
}
// The bits of `word` that lie inside (begin, end): those that a unit decides.
HD u32 inside(u32 begin, u32 end, u32 word) { return within(begin + 1, end, word); }
