// The device core on the host, for tests: the phases of the kernels, block by block and thread by thread.
#include <algorithm>
#include <cstring>
#include <vector>

#include "work.cuh"

namespace {

struct Counts {  // what a text has exercised
    u32 deferred, opaque, groups, cuts, parts, longs, uniform, windows, open, stretches, broken, shorts, middles, rounds, dips;
};

struct Text {
    std::vector<u64> store;
    const u8 *at;
    Text(const u8 *x, u32 n) : store(n / 8 + 16) {
        std::memset(store.data(), 0xee, store.size() * 8);  // whatever stands behind the text must not matter
        u8 *to = (u8 *)(((size_t)store.data() + 15) & ~(size_t)15);
        std::memcpy(to, x, n);
        at = to;
    }
};

struct Starts {
    std::vector<u32> mask, any, cuts;
    std::vector<u64> late;
    Marks marks;
};

template <class T> void pretokenize(const Tables &t, const u8 *text, u32 n, Starts &out, Counts &counts) {
    const u32 tiles = n / T::BYTES + 1;
    out.mask.assign(tiles * (T::BYTES / 32), 0xdeadbeef);
    out.any.assign(tiles, 0);
    out.late.assign(tiles + 1, 0);
    std::vector<Exit> exits(tiles);
    std::vector<u32> deferred, heads(tiles);
    std::vector<Map> maps((size_t)tiles * STATES_LIMIT), group_maps((size_t)(tiles / GROUP + 1) * STATES_LIMIT);
    std::vector<u32> group_opaque(tiles / GROUP + 1, 0);
    auto tile = new T;
    auto chunks = new ChunkMaps<T>;
    auto each = [](auto f) {
        for (int tid = 0; tid < T::THREADS; tid++) f(tid);
    };
    each([&](int tid) { load_tables(*tile, t, tid); });
    for (u32 k = 0; k < tiles; k++) {
        const long begin = (long)k * T::BYTES;
        each([&](int tid) { load_classes(*tile, t, text, n, begin, tid); });
        each([&](int tid) { find_start(*tile, t, tid); });
        each([&](int tid) { walk(*tile, begin, tid, &exits[k]); });
        heads[k] = head_of(*tile);
        if (heads[k]) deferred.push_back(k);
        each([&](int tid) { out.any[k] |= store_mask(*tile, n, begin, tid, out.mask.data()); });
        out.late[k] = late_of(*tile);
    }
    counts.deferred += deferred.size();
    for (u32 k : deferred) {
        if (exits[k].state != NONE) continue;
        counts.opaque++;
        each([&](int tid) { load_classes(*tile, t, text, n, (long)k * T::BYTES, tid); });
        each([&](int tid) { map_chunk(*chunks, *tile, t, tid, T::BYTES); });
        for (u32 q = 0; q < t.states; q++) maps[(size_t)k * STATES_LIMIT + q] = tile_map(*chunks, q, k * T::BYTES);
    }
    for (u32 g = 0; (g + 1) * GROUP <= tiles; g++) {
        u32 all = 1;
        for (u32 k = g * GROUP; k < (g + 1) * GROUP; k++) all &= exits[k].state == NONE;
        group_opaque[g] = all;
        counts.groups += all;
        for (u32 q = 0; all && q < t.states; q++) group_maps[(size_t)g * STATES_LIMIT + q] = group_map(maps.data(), g, q);
    }
    Stretches known = {exits.data(), maps.data(), group_maps.data(), group_opaque.data()};
    for (u32 k : deferred) {
        const u32 begin = k * T::BYTES;
        each([&](int tid) { load_classes(*tile, t, text, n, begin, tid); });
        const int end = heads[k];
        Map m = entry_of(known, k, t.stride);
        if (end <= SHORT_HEAD) {
            walk_head(*tile, t, m, n, begin, 0, end, out.mask.data(), out.any.data());
            continue;
        }
        each([&](int tid) { map_chunk(*chunks, *tile, t, tid, end); });
        for (int c = 0; c * T::CHUNK < end; c++) {
            walk_head(*tile, t, m, n, begin, c * T::CHUNK, std::min((c + 1) * T::CHUNK, end), out.mask.data(), out.any.data());
            m = then(m, chunk_map(*chunks, m.state, c, begin));
        }
    }
    delete tile;
    delete chunks;
    u32 shift = 0;
    while ((1u << shift) < T::BYTES / 32) shift++;
    out.cuts.assign(out.mask.size(), 0);
    out.marks = Marks{out.mask.data(), out.late.data(), out.any.data(), out.cuts.data(), shift};
}

void starts(const Tables &t, int shape, const u8 *text, u32 n, Starts &out, Counts &counts) {
    if (shape == 0) pretokenize<Tile<16, 4>>(t, text, n, out, counts);        // tiles of 64 bytes: every edge at once
    if (shape == 1) pretokenize<Tile<16, 128>>(t, text, n, out, counts);
    if (shape == 2) pretokenize<Tile<64, 128>>(t, text, n, out, counts);
}

u64 window_bits(const Tables &t, const u8 *text, const LongPiece &p, u32 word) {
    u32 begin = window_begin(p, word), length = window_end(p, word) - begin;
    if (length == WINDOW && one_byte(text, begin, begin + length)) return 0;
    // lengths of tokens are not kept: each token's place follows from merging again with the places in the products
    u32 tokens[WINDOW], ranks[WINDOW], products[WINDOW], places[WINDOW];
    for (u32 i = 0; i < length; i++) tokens[i] = ro(t.of_byte + text[begin + i]), places[i] = i;
    u32 n = length;
    for (;;) {
        u32 best = NONE, at = 0;
        for (u32 i = 0; i + 1 < n; i++) {
            ranks[i] = pair_rank(t, tokens[i], tokens[i + 1], products[i]);
            if (ranks[i] < best) best = ranks[i], at = i;
        }
        if (best == NONE) break;
        tokens[at] = products[at];
        for (u32 i = at + 1; i + 1 < n; i++) tokens[i] = tokens[i + 1], places[i] = places[i + 1];
        n--;
    }
    u64 bits = 0;
    for (u32 i = 0; i < n; i++) bits |= 1ull << (begin - word * 32 + places[i]);
    return bits;
}

void replace(const Marks &m, u32 begin, u32 end, u32 word, u32 bits) {
    u32 keep = ~inside(begin, end, word);
    atomic_and(&m.mask[word], keep);
    atomic_or(&m.mask[word], bits & ~keep);
}

bool encode_stretch(const Tables &t, const u8 *text, const Stretch &s, const Marks &m, Counts &counts) {
    u32 length = s.end - s.begin;
    RunList list;
    if (!s.head_end && !s.tail_begin && one_byte(text, s.begin, s.end) && merge_run(t, text[s.begin], length, list)) {
        counts.uniform++;
        for (u32 word = s.begin >> 5; word <= (s.end - 1) >> 5; word++) {
            u32 bits = 0, at = s.begin;
            for (int i = 0; i < list.size; i++) {
                bits |= run_bits(list.of[i], at, word);
                at += list.of[i].length * list.of[i].count;
            }
            replace(m, s.begin, s.end, word, bits);
        }
        return true;
    }
    auto rounds = new Rounds<8>;
    std::vector<u32> space(4 * (size_t)length);
    rounds->tokens = space.data(), rounds->starts = rounds->tokens + length;
    rounds->next_tokens = rounds->starts + length, rounds->next_starts = rounds->next_tokens + length;
    rounds->size = length;
    auto each = [](auto f) {
        for (int tid = 0; tid < 8; tid++) f(tid);
    };
    each([&](int tid) { rounds_begin(*rounds, t, text, s.begin, s.end, tid); });
    for (;; counts.rounds++) {
        each([&](int tid) { rounds_rank(*rounds, t, tid); });
        rounds_pick(*rounds);
        if (rounds->rank == NONE) break;
        if (rounds->rank & 1) {
            counts.dips++;
            rounds_one_by_one(*rounds, t);
            rounds_swap(*rounds);
            continue;
        }
        each([&](int tid) { rounds_trailing(*rounds, tid); });
        each([&](int tid) { rounds->best[tid] = rounds_count(*rounds, tid); });
        rounds_sum(*rounds);
        each([&](int tid) { rounds_merge(*rounds, tid); });
        rounds_swap(*rounds);
    }
    u32 size = rounds->size;
    bool fit = fits(s, size > 1 ? rounds->starts[1] : s.end, rounds->starts[size - 1]);
    if (fit) {
        for (u32 word = s.begin >> 5; word <= (s.end - 1) >> 5; word++) replace(m, s.begin, s.end, word, 0);
        for (u32 i = 0; i < size; i++) atomic_or(&m.mask[rounds->starts[i] >> 5], 1u << (rounds->starts[i] & 31));
    }
    delete rounds;
    return fit;
}

void cut_long(const Tables &t, const u8 *text, u32 n, const Marks &m, Counts &counts) {
    std::vector<LongPiece> longs;
    u32 windows = 0;
    for (u32 word = 1; word * 32ull < n; word++) {
        u32 begin;
        if (!begins_long(m, word, n, begin)) continue;
        u32 end = next_mark(m, word + 1, n);
        u32 id = end - begin <= t.longest ? probe(t, text + begin, end - begin) : NONE;
        if (id != NONE && !(id & PIECES_ONLY && is_part(m, begin, end, n))) continue;
        longs.push_back(LongPiece{begin, end, windows, 0});
        windows += window_count(longs.back());
    }
    counts.longs += longs.size();
    counts.windows += windows;
    std::vector<u64> bits(windows);
    for (auto &p : longs)
        for (u32 k = 0; k < window_count(p); k++) bits[p.first + k] = window_bits(t, text, p, first_word(p) + k);
    std::vector<std::pair<u32, u32>> open;
    for (u32 k = 0; k < longs.size(); k++)
        for (u32 word = first_word(longs[k]); word <= last_word(longs[k]); word++) {
            Joined j = joined(longs[k], bits.data(), word);
            if (j.known) atomic_or(&m.mask[word], j.bits);
            else counts.open++;
            if (opens(longs[k], bits.data(), word)) open.push_back({k, word});
        }
    counts.stretches += open.size();
    for (auto [k, word] : open) {
        u32 next = word + 1;
        while (next < last_word(longs[k]) && !joined(longs[k], bits.data(), next).known) next++;
        if (!encode_stretch(t, text, stretch_at(longs[k], bits.data(), word, next), m, counts)) longs[k].broken = 1;
    }
    for (auto &p : longs) {
        if (!p.broken) continue;
        counts.broken++;
        encode_stretch(t, text, Stretch{p.begin, p.end, 0, 0}, m, counts);
    }
}

}  // namespace

extern "C" {

u32 tt_sizes(u32 which) {
    const u32 sizes[] = {sizeof(Tables), sizeof(Work), sizeof(Request), sizeof(Counts), sizeof(Exit), sizeof(Map), sizeof(LongPiece), sizeof(Miss)};
    return sizes[which];
}

// Where pieces begin: one byte a byte of the text.
void tt_starts(const Tables *t, int shape, const u8 *x, u32 n, u8 *out, Counts *counts) {
    Text text(x, n);
    Starts s;
    starts(*t, shape, text.at, n, s, *counts);
    for (u32 i = 0; i < n; i++) out[i] = marks_at(s.marks, i >> 5) >> (i & 31) & 1;
}

// The IDs, room for one a byte. Returns how many, or NONE where a piece was not encoded.
u32 tt_encode(const Tables *t, int shape, const u8 *x, u32 n, u32 *out, Counts *counts) {
    Text text(x, n);
    Starts s;
    starts(*t, shape, text.at, n, s, *counts);
    for (u32 word = 0; word * 32ull < n; word++) {
        for (u32 at = word * 32; at < n && at < word * 32 + 32; at++)
            if (cut_before(*t, text.at, at)) s.cuts[word] |= 1u << (at & 31);
        counts->cuts += count(s.cuts[word]);
    }
    cut_long(*t, text.at, n, s.marks, *counts);
    u32 total = 0;
    for (u32 at = 0; at < n;) {
        u32 word = at >> 5, here = at & 31, left = here == 31 ? 0 : marks_at(s.marks, word) & (NONE << (here + 1));
        u32 end = left ? word * 32 + lowest(left) : next_mark(s.marks, word + 1, n);
        if (end > n) end = n;
        u32 id = probe(*t, text.at + at, end - at);
        if (id != NONE && id & PIECES_ONLY) {
            bool part = is_part(s.marks, at, end, n);
            counts->parts += part;
            id = part ? NONE : id & ~PIECES_ONLY;
        }
        if (id != NONE) {
            out[total++] = id;
        } else if (end - at <= MIDDLE) {
            u32 ranks[MIDDLE], products[MIDDLE];
            (end - at <= SHORT ? counts->shorts : counts->middles)++;
            total += merge_piece(*t, text.at + at, end - at, out + total, ranks, products, 1);
        } else {
            return NONE;
        }
        at = end;
    }
    return total;
}

}  // extern "C"
