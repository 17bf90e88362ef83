// What one request works on. toktier/gpu/buffers.py lays it out.
#pragma once
#include "cuts.cuh"
#include "statemap.cuh"
#include "units.cuh"

constexpr u32 PROBE_TILE = 2048;   // bytes
constexpr u32 SUMMED = 64;         // probe tiles
constexpr u32 SHORT = 16, MIDDLE = 63;  // bytes of pieces that are merged by half a warp, by a warp
// A piece that is no token, in `ids`: its tokens lie in `loose`, at its own position in the text.
constexpr u32 MISSED = 1u << 31, MISSED_COUNT = 11;  // MISSED | how many << MISSED_COUNT | position in the probe tile

// NONE stands where nothing has encoded a piece, which `error` tells.
HD bool is_missed(u32 id) { return id & MISSED && id != NONE; }

struct Miss {
    u32 begin;
    u32 at;  // index among the tile's pieces | length << 16
};
struct Request {  // copied with the text, so that counters are zero
    u32 n;            // bytes
    u32 deferred;     // tiles whose head is not walked yet
    u64 longs;        // windows | long pieces << 32
    u32 shorts, middles;
    u32 open;         // whether windows leave words of long pieces open
    u32 unsettled;    // ends of units that were not settled, in all passes
    u32 units[2], bigs[2], giants[2];  // of even and of odd passes; bigs: no warp's; giants: several blocks'
    u32 error;        // units that would take long (DIPS_LIMIT); pieces that nothing has encoded
    u32 total;        // tokens
    u32 passes;
    u32 merged;       // blocks that have finished
    u32 barriers[2];  // arrivals at those of heads and of stretches, whose blocks are other numbers
    u32 turn;         // a number that comes back when all is delivered
    u32 unused[11];
};
static_assert(sizeof(Request) == 128, "buffers.py packs it");

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
    u32 *marked;     // per slot (units.cuh): the pass that has it encoded
    Unit *units, *giants;
    u64 *bigs;       // slot << 32 | where the unit begins; later its end << 32 | where it begins (find_big_units)
    u64 *team;       // what all blocks tell each other
    u32 *ids;        // per probe tile, room for one a byte
    u32 *loose;
    u32 *spare, *ranks;
    Miss *shorts, *middles;
    u32 *pieces, *tokens, *offsets;  // per probe tile
    u32 *out;
    u32 *sums;         // per SUMMED probe tiles
    u32 *host_out;     // page-locked memory of the host, in the device's address space
    Request *host_request;   // behind it the turn comes back
    const Request *staged;   // of brief texts, with the text behind it: where the host puts them
    u32 shift;         // log2 of the mask words of a tile of the pre-tokenizer
    u32 room;          // bytes of text that the buffers are made for
};
static_assert(sizeof(Work) == 33 * 8 + 8, "buffers.py packs it without padding");

HD Marks marks_of(const Work &w) { return Marks{w.mask, w.late, w.any, w.cuts, w.shift}; }
