// One tokenizer as the kernels see it. toktier/gpu/tables.py fills it: order and sizes are the same there.
#pragma once
#include "base.cuh"

constexpr u32 MOVES_LIMIT = 1024, SYNC_LIMIT = 2560, STATES_LIMIT = 64;
constexpr u32 ROWS_AT = 256 + 1024, ROWS = 15, BLOCKS = ROWS_AT + 64 * ROWS;
constexpr u32 FIRST_ROW = 240, LOOK = FIRST_ROW + ROWS;  // in place of a class
constexpr u32 BREAK_BYTE = 0xff, BREAK_ID = 0x3fffffff;
constexpr u32 PIECES_ONLY = 1u << 30;  // in the ID of a slot: BPE of the token's text is not the token

struct Slot8 {  // pieces of 1 to 8 bytes; length 0: free
    u64 key;
    u32 id, length;
};
struct Slot16 {  // 9 to 16
    u64 low, high;
    u32 id, length, unused[2];
};
struct SlotLong {  // more: the hash, and where the bytes are
    u64 hash;
    u32 id, length, offset, unused[3];
};
struct SlotPair {  // rank NONE: free; odd: a dip (merges.py)
    u32 left, right, rank, product;
};

struct Tables {
    const u8 *blocks;        // [BLOCKS]: classes by a byte; by the first two of three; rows of 64 by the last one (classes.cuh)
    const u32 *moves;        // [states][stride]: row of the target | emissions << 16 | sources << 20 | moves << 26 | it reads no register << 27
    const u16 *sync;         // [subsets][stride]: row of a state, or rows(states) + row of a subset
    const u16 *pages;        // [0x110000 / 128]
    const u8 *page_classes;  // [page][128]
    const Slot8 *slots_8;
    const Slot16 *slots_16;
    const SlotLong *slots_long;
    const u8 *long_text;
    const SlotPair *pairs;
    const u32 *of_byte;      // [256]: token of a byte
    const u32 *adjacent;     // a filter of the pairs of characters that some token has side by side (cuts.cuh)
    const u32 *adjacent_bytes;  // bits, [64 last bytes][64 first ones]: where some token has a part of a character
    const u32 *characters;      // bits by ID: tokens that a character may be from the beginning (merges.py, lemma E)
    const u64 *members;      // beside rows of `sync`: rows of up to four states, 16 bits each, 0xffff for none; of more, none at all
    // A row has an entry per class; then one for bytes that continue a character, one for the break.
    u32 classes, stride, states, moves_size, sync_size;
    u32 bits_8, bits_16, bits_long, longest, bits_pair, bits_adjacent, open_rows;  // open_rows: nothing synchronises in a row of CJK
};
static_assert(sizeof(Tables) == 15 * 8 + 12 * 4, "tables.py packs it without padding");
static_assert(sizeof(Slot8) == 16 && sizeof(Slot16) == 32 && sizeof(SlotLong) == 32 && sizeof(SlotPair) == 16, "");

HD u32 continuation_class(const Tables &t) { return t.classes; }
HD u32 break_class(const Tables &t) { return t.classes + 1; }
