#include "planner/routing/chunker.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <numeric>
#include <tuple>
#include <utility>

namespace sluice {
namespace {

// So many short pieces of a group from one owner cost less as one packed chunk, which its owner has to copy and to announce, than
// as gets.
constexpr std::size_t kPiecesWorthPacking = 4;
// A cut run ends at a multiple of this where the chunk has room for one: keeps reads aligned.
constexpr std::int64_t kRunAlignment = 64;

// Longest gapless stretch of the source that the walk in destination order reads.
std::int64_t source_run(const StridedCopy& copy) {
    std::int64_t run = copy.item;
    for (std::size_t d = copy.sizes.size(); d-- > 0 && copy.src_strides[d] == run;) {
        run *= copy.sizes[d];
    }
    return run;
}

// What is read directly comes in the order of the owner's memory, so that tensors that lie there side by side can be one read, wherever their
// parameters are; all else in that of the worker's.
std::pair<std::int64_t, std::int64_t> place_of(const Piece& piece, Path path) {
    return path == Path::kDirect ? std::pair<std::int64_t, std::int64_t>(piece.segment, piece.copy.src_offset)
                                 : std::pair<std::int64_t, std::int64_t>(piece.parameter, piece.copy.dst_offset);
}

auto order_key(const RoutedPiece& p) {
    return std::make_tuple(p.group_position, p.owner, p.path, place_of(p.piece, p.path));
}

bool same_chunk_list(const RoutedPiece& a, const RoutedPiece& b) {
    return a.group_position == b.group_position && a.owner == b.owner && a.path == b.path;
}

// Joins `next` to the end of `last` when they are one box.
bool join(RoutedPiece& last, const RoutedPiece& next) {
    Piece& a = last.piece;
    const Piece& b = next.piece;
    if (!same_chunk_list(last, next) || last.owners != next.owners || last.mirrors != next.mirrors ||
        a.parameter != b.parameter || a.segment != b.segment || a.source_dtype != b.source_dtype ||
        a.parameter_dtype != b.parameter_dtype) {
        return false;
    }
    StridedCopy& x = a.copy;
    const StridedCopy& y = b.copy;
    if (x.sizes.empty() && y.sizes.empty() && !a.converts()) {
        if (y.src_offset != x.src_offset + x.item || y.dst_offset != x.dst_offset + x.item) {
            return false;
        }
        x.item += y.item;
        return true;
    }
    if (x.sizes.empty() || x.item != y.item || x.sizes.size() != y.sizes.size() || x.src_strides != y.src_strides ||
        x.dst_strides != y.dst_strides || !std::equal(x.sizes.begin() + 1, x.sizes.end(), y.sizes.begin() + 1) ||
        y.src_offset != x.src_offset + x.sizes[0] * x.src_strides[0] ||
        y.dst_offset != x.dst_offset + x.sizes[0] * x.dst_strides[0]) {
        return false;
    }
    x.sizes[0] += y.sizes[0];
    return true;
}

// Pieces are large: their numbers are sorted.
void sort(std::vector<std::size_t>& order, const std::vector<RoutedPiece>& pieces) {
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        return std::make_tuple(order_key(pieces[a]), a) < std::make_tuple(order_key(pieces[b]), b);
    });
}

void join_neighbours(std::vector<std::size_t>& order, std::vector<RoutedPiece>& pieces) {
    std::size_t kept = 0;
    for (const std::size_t number : order) {
        if (kept == 0 || !join(pieces[order[kept - 1]], pieces[number])) {
            order[kept++] = number;
        }
    }
    order.resize(kept);
}

// What comes from one owner in one group, in `order`. True when the path of some has changed.
bool pack_short_pieces(const std::vector<std::size_t>& order, std::vector<RoutedPiece>& pieces,
                       std::int64_t direct_piece) {
    bool changed = false;
    std::vector<RoutedPiece*> short_ones;
    for (std::size_t i = 0; i < order.size();) {
        const RoutedPiece& first = pieces[order[i]];
        bool packed = false;
        short_ones.clear();
        for (; i < order.size(); ++i) {
            RoutedPiece& piece = pieces[order[i]];
            if (piece.group_position != first.group_position || piece.owner != first.owner) {
                break;
            }
            packed = packed || piece.path == Path::kPacked;
            if (piece.path == Path::kDirect && piece.piece.wire_bytes() < direct_piece) {
                short_ones.push_back(&piece);
            }
        }
        if (packed || short_ones.size() >= kPiecesWorthPacking) {
            for (RoutedPiece* piece : short_ones) {
                piece->path = Path::kPacked;
            }
            changed = changed || !short_ones.empty();
        }
    }
    return changed;
}

// Fills chunks of one (group, owner, path) one after the other.
class ChunkFiller {
public:
    ChunkFiller(std::int64_t chunk_bytes, OwnerSets& sets, std::vector<Chunk>& out)
        : limit_(chunk_bytes), sets_(sets), out_(out) {}

    void add(const RoutedPiece& routed) {
        owners_now_ = routed.owners;
        mirrors_now_ = routed.mirrors;
        head_ = &routed;
        add_box(routed.piece);
    }

    void close() {
        if (pieces_.empty()) {
            return;
        }
        // A box that was cut may go on behind the start of the next one.
        std::sort(pieces_.begin(), pieces_.end(), [path = chunk_.path](const Piece& a, const Piece& b) {
            return std::make_tuple(place_of(a, path), a.parameter, a.copy.dst_offset) <
                   std::make_tuple(place_of(b, path), b.parameter, b.copy.dst_offset);
        });
        // Exactly as many as there are: plans are kept, and large ones are mostly pieces.
        chunk_.pieces.assign(std::make_move_iterator(pieces_.begin()), std::make_move_iterator(pieces_.end()));
        pieces_.clear();
        chunk_.alternates = without_owner(common_);
        chunk_.mirrors = without_owner(common_mirrors_);
        out_.push_back(std::move(chunk_));
        chunk_ = Chunk();
    }

private:
    [[nodiscard]] std::int64_t room() const { return limit_ - chunk_.wire_bytes; }

    [[nodiscard]] std::vector<int> without_owner(OwnerSetId set) const {
        std::vector<int> ranks = sets_[set];
        std::erase(ranks, chunk_.owner);
        return ranks;
    }

    void append(Piece piece) {
        if (pieces_.empty()) {
            chunk_.group = head_->group;
            chunk_.owner = head_->owner;
            chunk_.path = head_->path;
            common_ = owners_now_;
            common_mirrors_ = mirrors_now_;
        } else {
            common_ = sets_.intersect(common_, owners_now_);
            common_mirrors_ = sets_.intersect(common_mirrors_, mirrors_now_);
        }
        chunk_.wire_bytes += piece.wire_bytes();
        piece.copy = coalesce(piece.copy, piece.converts());
        pieces_.push_back(std::move(piece));
    }

    void add_box(Piece piece) {
        while (piece.wire_bytes() > room()) {
            if (room() < limit_ / 4) {
                close();
                continue;
            }
            if (piece.copy.sizes.empty()) {
                // One run: cut it between elements.
                std::int64_t bytes = room() / size_of(piece.source_dtype) * size_of(piece.source_dtype);
                if (bytes > kRunAlignment) {
                    bytes -= bytes % kRunAlignment;
                }
                Piece first = piece;
                first.copy.item = bytes;
                append(std::move(first));
                piece.copy.item -= bytes;
                piece.copy.src_offset += bytes;
                piece.copy.dst_offset += bytes;
                continue;
            }
            const std::int64_t rows = piece.copy.sizes[0];
            const std::int64_t fit = room() / (piece.wire_bytes() / rows);
            if (fit > 0) {
                Piece first = piece;
                first.copy = slice_outer(piece.copy, 0, fit);
                append(std::move(first));
                piece.copy = slice_outer(piece.copy, fit, rows);
                continue;
            }
            if (!pieces_.empty()) {
                close();
                continue;
            }
            // Not even one row fits into an empty chunk: row by row.
            for (std::int64_t row = 0; row < rows; ++row) {
                Piece one = piece;
                one.copy = coalesce(slice_outer(piece.copy, row, row + 1), piece.converts());
                add_box(std::move(one));
            }
            return;
        }
        append(std::move(piece));
    }

    std::int64_t limit_;
    OwnerSets& sets_;
    std::vector<Chunk>& out_;
    Chunk chunk_;
    std::vector<Piece> pieces_;  // of chunk_
    OwnerSetId common_ = 0;
    OwnerSetId owners_now_ = 0;
    OwnerSetId common_mirrors_ = 0;
    OwnerSetId mirrors_now_ = 0;
    const RoutedPiece* head_ = nullptr;
};

// [first, end) of `chunks` are those of one group, by owner: deals them out one of each owner at a time.
void interleave_owners(std::vector<Chunk>& chunks, std::size_t first, std::size_t rotation) {
    std::vector<std::vector<Chunk>> by_owner;
    for (std::size_t i = first; i < chunks.size(); ++i) {
        if (by_owner.empty() || by_owner.back().front().owner != chunks[i].owner) {
            by_owner.emplace_back();
        }
        by_owner.back().push_back(std::move(chunks[i]));
    }
    const std::size_t total = chunks.size() - first;
    chunks.resize(first);
    for (std::size_t turn = 0; chunks.size() - first < total; ++turn) {
        for (std::size_t k = 0; k < by_owner.size(); ++k) {
            std::vector<Chunk>& mine = by_owner[(k + rotation) % by_owner.size()];
            if (turn < mine.size()) {
                chunks.push_back(std::move(mine[turn]));
            }
        }
    }
}

}  // namespace

Path choose_path(const Piece& piece, const RouteOptions& options, bool mappable) {
    using Choice = RouteOptions::PathChoice;
    const Choice choice = options.path;
    if (mappable && !piece.converts() && (choice == Choice::kMapped || choice == Choice::kAuto)) {
        return Path::kMapped;
    }
    const bool narrows = size_of(piece.source_dtype) > size_of(piece.parameter_dtype);
    if (choice == Choice::kPacked || narrows) {
        return Path::kPacked;
    }
    if (choice == Choice::kDirect) {
        return Path::kDirect;
    }
    return source_is_contiguous(piece.copy) || source_run(piece.copy) >= options.direct_run ? Path::kDirect
                                                                                            : Path::kPacked;
}

std::vector<Chunk> make_chunks(std::vector<RoutedPiece> pieces, const RouteOptions& options, std::size_t rotation,
                               OwnerSets& sets) {
    std::vector<std::size_t> order(pieces.size());
    std::iota(order.begin(), order.end(), 0U);
    sort(order, pieces);
    join_neighbours(order, pieces);
    if (options.path == RouteOptions::PathChoice::kAuto && pack_short_pieces(order, pieces, options.direct_piece)) {
        sort(order, pieces);
    }
    std::vector<Chunk> chunks;
    ChunkFiller filler(options.chunk_bytes, sets, chunks);
    std::size_t group_begin = 0;
    for (std::size_t i = 0; i < order.size(); ++i) {
        const RoutedPiece& piece = pieces[order[i]];
        const RoutedPiece* next = i + 1 < order.size() ? &pieces[order[i + 1]] : nullptr;
        filler.add(piece);
        if (next == nullptr || !same_chunk_list(piece, *next)) {
            filler.close();
        }
        if (next == nullptr || next->group_position != piece.group_position) {
            interleave_owners(chunks, group_begin, rotation);
            group_begin = chunks.size();
        }
    }
    return chunks;
}

}  // namespace sluice
