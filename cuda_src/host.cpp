// The device core on the host, for tests: the phases of the kernels, block by block and thread by thread.
#include <algorithm>
#include <cstring>
#include <vector>

#include "settle.cuh"
#include "work.cuh"

namespace {

struct Counts {  // what a text has exercised
    u32 settled, deferred, opaque, groups, cuts, parts, longs, uniform, windows, open, units, unsettled, passes, shorts, middles, rounds, dips, dip_parts, dips_again, early;
};

struct Text {
    std::vector<u64> store;
    const u8 *at;
    Text(const u8 *x, u32 n) : store(n / 8 + 18) {
        std::memset(store.data(), 0xee, store.size() * 8);  // whatever stands behind the text must not matter
        u8 *to = (u8 *)(((size_t)store.data() + 31) & ~(size_t)15);  // a few bytes before it are read
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
    std::vector<u32> room(t.states * T::THREADS);
    auto chunks = (ChunkMaps<T> *)room.data();
    auto each = [](auto f) {
        for (int tid = 0; tid < T::THREADS; tid++) f(tid);
    };
    each([&](int tid) { load_tables(*tile, t, tid); });
    for (u32 k = 0; k < tiles; k++) {
        const long begin = (long)k * T::BYTES;
        each([&](int tid) { load_classes(*tile, t, text, n, begin, tid); });
        each([&](int tid) { find_start(*tile, t, T::OWN + tid); });
        bool far = false;
        for (int c = T::OWN; c < T::CHUNKS; c++) far = far || is_far(*tile, c);
        if (far) {
            const int first = is_open(*tile, T::OWN) ? 0 : T::OWN;
            if (!first) each([&](int tid) { load_part<T, false>(*tile, t, text, n, begin, 0, T::FAR, tid, [](long, u32) {}); });
            for (int c = first; c < T::OWN; c++) find_start(*tile, t, c);
            for (int c = first; c < T::CHUNKS; c++) settle_exits(*tile, c);
            for (int c = first; c < T::CHUNKS; c++) settle_maps(*tile, t, c, first);
            for (int c = first; c < T::CHUNKS; c++) settle_entries(*tile, c, first);
            for (int c = first; c < T::CHUNKS; c++) settle_rows(*tile, t, c);
            for (int c = first; c < T::CHUNKS; c++) counts.settled += tile->entry[c] != NO_MEMBER, settle_starts(*tile, c);
        }
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

// The tokens that BPE of a stretch begins with, and their places.
u32 begin_tokens(const Tables &t, const u8 *x, u32 length, u32 *tokens, u32 *places, Counts &counts) {
    u32 n = 0;
    for (u32 at = 0; at < length;) {
        const u32 early = x[at] >= 0xc0 ? early_token(t, x, length, at) : NONE;
        places[n] = at;
        tokens[n++] = early != NONE ? early : ro(t.of_byte + x[at]);
        at += early == NONE ? 1 : x[at] < 0xe0 ? 2 : x[at] < 0xf0 ? 3 : 4;
        counts.early += early != NONE;
    }
    return n;
}

u64 window_bits(const Tables &t, const u8 *text, const LongPiece &p, u32 word, Counts &counts) {
    u32 begin = window_begin(p, word), length = window_end(p, word) - begin;
    if (length == WINDOW && one_byte(text, begin, begin + length)) return 0;
    // lengths of tokens are not kept: each token's place follows from merging again with the places in the products
    u32 tokens[WINDOW], ranks[WINDOW], products[WINDOW], places[WINDOW];
    u32 n = begin_tokens(t, text + begin, length, tokens, places, counts);
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

bool merge_dip(const Tables &t, Sequence<u32> &s, u32 rank, const Share *own, u32 threads, Counts &counts) {
    std::vector<Part> parts(threads);
    std::vector<u32> kept(threads);
    for (u32 margin = MARGIN; margin <= MARGIN_LIMIT; margin *= 4) {
        u32 came_to = DONE, to = 0;
        for (u32 k = 0; k < threads; k++) {
            parts[k] = part_of(s, rank, own[k], margin);
            came_to = std::min(came_to, try_part(s, t, rank, parts[k], kept[k]));
        }
        if (came_to == TOO_LONG) break;
        counts.dips_again += came_to == AGAIN;
        if (came_to == AGAIN) continue;
        for (u32 k = 0; k < threads; to += kept[k++]) {
            put_part(s, parts[k], kept[k], to);
            counts.dip_parts += k && kept[k];
        }
        s.size = to;
        return true;
    }
    return false;
}

// BPE of a unit's text by eight threads in turn. False: a dip in too long a sequence.
bool encode_unit(const Tables &t, const u8 *text, const Unit &unit, std::vector<u32> &starts, Counts &counts) {
    constexpr u32 THREADS = 8;
    const u32 length = unit.end - unit.begin;
    std::vector<u32> space(6 * (size_t)length);
    u32 *at = space.data();
    Sequence<u32> s = {at, at + length, at + 2 * length, at + 3 * length, at + 4 * length, at + 5 * length, length};
    Share own[THREADS];
    auto shares = [&] {
        for (u32 k = 0; k < THREADS; k++) own[k] = share_of(s.size, k, THREADS);
    };
    shares();
    for (auto &share : own) share_begin(s, t, text + unit.begin, share);
    for (;; counts.rounds++, shares()) {
        u32 best = NONE, place = 0;
        for (auto &share : own) {
            u32 here, rank = share_rank(s, t, share, here);
            if (rank < best) best = rank, place = here;
        }
        if (best == NONE) break;
        if (best & 1) {
            counts.dips++;
            if (!merge_dip(t, s, best, own, THREADS, counts)) return false;
            continue;
        }
        const Pair m = pair_at(s, t, place);
        u32 run = 0, to = 0;
        for (auto &share : own) {
            u32 from = share_from(s, m, share, run), behind = share_run(s, m, share);
            share_merge(s, m, from, share, to);
            to += share_count(s, m, from, share);
            run = std::max(run, behind);
        }
        s.swap(to);
    }
    starts.assign(s.starts, s.starts + s.size);
    return true;
}

bool encode_run(const Tables &t, const u8 *text, const Unit &unit, const Marks &m) {
    RunList list;
    if (!one_byte(text, unit.begin, unit.end) || !merge_run(t, text[unit.begin], unit.end - unit.begin, list)) return false;
    for (u32 word = unit.begin >> 5; word <= (unit.end - 1) >> 5; word++) {
        u32 bits = 0, at = unit.begin;
        for (int i = 0; i < list.size; i++) {
            bits |= run_bits(list.of[i], at, word);
            at += list.of[i].length * list.of[i].count;
        }
        replace(m, unit.begin, unit.end, word, bits);
    }
    return true;
}

// Whether BPE of the two tokens that meet at `at` is those two.
bool settled(const Tables &t, const u8 *text, const Marks &m, const LongPiece &p, u32 at) {
    u32 begin = at - 1, end = at + 1;
    auto begins = [&](u32 i) { return tokens_at(m, p, i >> 5) >> (i & 31) & 1; };
    while (!begins(begin)) begin--;
    while (end < p.end && !begins(end)) end++;
    if (end - begin > SMALL_UNIT) return false;
    std::vector<u32> starts;
    Counts unused = {};
    return encode_unit(t, text, Unit{begin, end, 0}, starts, unused) && starts.size() == 2 && begin + starts[1] == at;
}

bool encode_open(const Tables &t, const u8 *text, const Marks &m, const std::vector<LongPiece> &longs, std::vector<u32> &marks, Counts &counts) {
    for (u32 pass = 1;; pass++) {
        std::vector<Unit> units;
        for (u32 k = 0; k < longs.size(); k++) {
            const LongPiece &p = longs[k];
            const Marked marked = {marks.data() + first_slot(p, k), pass};
            for (u32 word = first_word(p); word <= last_word(p); word++) {
                Unit unit = {0, 0, k};
                if (!unit_begins(m, p, marked, word, unit.begin)) continue;
                for (u32 behind = word + 1; !unit_ends(m, p, marked, behind, unit.end);) behind++;
                units.push_back(unit);
            }
        }
        if (units.empty()) return true;
        counts.units += units.size();
        counts.passes = std::max(counts.passes, pass);
        for (auto &unit : units) {
            if (encode_run(t, text, unit, m)) {
                counts.uniform++;
                continue;
            }
            std::vector<u32> starts;
            if (!encode_unit(t, text, unit, starts, counts)) return false;
            for (u32 word = unit.begin >> 5; word <= (unit.end - 1) >> 5; word++) replace(m, unit.begin, unit.end, word, 0);
            for (u32 i = 1; i < starts.size(); i++) {
                u32 at = unit.begin + starts[i];
                atomic_or(&m.mask[at >> 5], 1u << (at & 31));
            }
        }
        for (auto &unit : units) {
            const LongPiece &p = longs[unit.piece];
            for (u32 at : {unit.begin, unit.end}) {
                if (at == p.begin || at == p.end || settled(t, text, m, p, at)) continue;
                counts.unsettled++;
                u32 first, last;
                around(p, at, pass, first, last);
                for (u32 word = first; word <= last; word++) marks[first_slot(p, unit.piece) + word - first_word(p)] = pass + 1;
            }
        }
    }
}

bool cut_long(const Tables &t, const u8 *text, u32 n, const Marks &m, Counts &counts) {
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
        for (u32 k = 0; k < window_count(p); k++) bits[p.first + k] = window_bits(t, text, p, first_word(p) + k, counts);
    std::vector<u32> marks;
    for (auto &p : longs)
        for (u32 word = first_word(p); word <= last_word(p); word++) {
            Joined j = joined(p, bits.data(), word);
            if (j.known) atomic_or(&m.mask[word], j.bits & inside(p.begin, p.end, word));
            counts.open += !j.known;
            marks.push_back(!j.known);
        }
    return encode_open(t, text, m, longs, marks, counts);
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
            if (at && may_cut(text.at[at - 1], text.at[at]) && cut_before(*t, text.at, at)) s.cuts[word] |= 1u << (at & 31);
        counts->cuts += count(s.cuts[word]);
    }
    if (!cut_long(*t, text.at, n, s.marks, *counts)) return NONE;
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
            u32 ranks[MIDDLE], products[MIDDLE], places[MIDDLE], length = end - at;
            const bool is_short = length <= SHORT;
            (is_short ? counts->shorts : counts->middles)++;
            if (is_short) total += merge_piece(*t, text.at + at, length, out + total, ranks, products, 1);
            else total += merge_tokens(*t, begin_tokens(*t, text.at + at, length, out + total, places, *counts), out + total, ranks, products, 1);
        } else {
            return NONE;
        }
        at = end;
    }
    return total;
}

// A whole text as one unit: where its tokens begin, room for one a byte. Returns how many, or NONE.
u32 tt_unit(const Tables *t, const u8 *x, u32 n, u32 *out, Counts *counts) {
    Text text(x, n);
    std::vector<u32> starts;
    if (!encode_unit(*t, text.at, Unit{0, n, 0}, starts, *counts)) return NONE;
    std::copy(starts.begin(), starts.end(), out);
    return (u32)starts.size();
}

}  // extern "C"
