// What one request works on. toktier/gpu/buffers.py lays it out.
#pragma once
#include "cuts.cuh"
#include "rounds.cuh"
#include "statemap.cuh"

constexpr u32 PROBE_TILE = 2048;   // bytes
constexpr u32 SHORT = 16, MIDDLE = 63;  // bytes of pieces that are merged by half a warp, by a warp
// A piece that is no token, in `ids`: its tokens lie in `loose`, at its own position in the text.
constexpr u32 MISSED = 1u << 31, MISSED_COUNT = 11;  // MISSED | how many << MISSED_COUNT | position in the probe tile

struct Miss {
    u32 begin;
    u32 at;  // index among the tile's pieces | length << 16
};
struct Request {  // copied with the text, so that counters are zero
    u32 n;            // bytes
    u32 deferred;     // tiles whose head is not walked yet
    u64 longs;        // windows | long pieces << 32
    u32 stretches, shorts, middles;
    u32 broken;       // stretches that did not fit
    u32 scratch;      // tokens of room that stretches have taken
    u32 error;        // stretches that would take long (DIPS_LIMIT); pieces that nothing has encoded
    u32 total;        // tokens
    u32 stretched, merged;  // blocks that have finished
    u32 unused[3];
};
static_assert(sizeof(Request) == 64, "buffers.py packs it");

struct Work {
    const u8 *text;  // aligned to 16 bytes; 16 bytes behind the end are readable
    Request *request;
    u32 *mask;
    u64 *late;
    u32 *any;
    u32 *cuts;
    Exit *exits;
    u32 *deferred;  // tile numbers
    u32 *heads;     // per tile
    Map *maps;
    Map *group_maps;
    u32 *group_opaque;
    LongPiece *longs;
    u64 *windows;
    u32 *stretches;  // pairs: long piece, first open word
    u32 *ids;        // per probe tile, room for one a byte
    u32 *loose;
    u32 *spare;
    Miss *shorts, *middles;
    u32 *pieces, *tokens, *offsets;  // per probe tile
    u32 *out;
    u32 *host_out;     // page-locked memory of the host, in the device's address space
    Request *host_request;
    u32 shift;         // log2 of the mask words of a tile of the pre-tokenizer
    u32 room;          // bytes of text that the buffers are made for
};
static_assert(sizeof(Work) == 26 * 8 + 8, "buffers.py packs it without padding");

HD Marks marks_of(const Work &w) { return Marks{w.mask, w.late, w.any, w.cuts, w.shift}; }
