#pragma once

#include "runtime/base/strided_copy.h"
#include "runtime/cuda/copy_program.h"
#include "runtime/services/copy_engine.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <vector>

namespace sluice::test {

/// Some strided copies from one memory to another, and what the host engine makes of them.
struct CopySet {
    struct One {
        StridedCopy copy;
        DType from = DType::kU8, to = DType::kU8;
        std::int64_t wire_offset = 0;

        [[nodiscard]] std::int64_t wire_item() const {
            return from == to ? copy.item : std::min(size_of(from), size_of(to));
        }
        [[nodiscard]] std::int64_t wire_bytes() const { return copy.items() * wire_item(); }
        [[nodiscard]] DType wire() const { return size_of(from) <= size_of(to) ? from : to; }
    };

    std::vector<One> copies;
    std::vector<std::byte> source;
    std::size_t target_bytes = 0;
    std::int64_t wire_bytes = 0;

    [[nodiscard]] std::vector<ProgramCopy> pack(const std::byte* from = nullptr) const {
        std::vector<ProgramCopy> out;
        for (const One& one : copies) {
            out.push_back({packed_from_source(one.copy, one.wire_offset, one.wire_item()), CopyBase::kAddress,
                           CopyBase::kWire, from != nullptr ? from : source.data(), nullptr, one.from, one.wire()});
        }
        return out;
    }
    [[nodiscard]] std::vector<ProgramCopy> scatter(std::byte* to) const {
        std::vector<ProgramCopy> out;
        for (const One& one : copies) {
            StridedCopy copy = destination_from_packed(one.copy, one.wire_offset, one.wire_item());
            copy.item = one.wire_item();
            out.push_back({copy, CopyBase::kWire, CopyBase::kAddress, nullptr, to, one.wire(), one.to});
        }
        return out;
    }
    [[nodiscard]] std::vector<ProgramCopy> source_to(std::byte* to, const std::byte* from = nullptr) const {
        std::vector<ProgramCopy> out;
        for (const One& one : copies) {
            out.push_back({one.copy, CopyBase::kAddress, CopyBase::kAddress, from != nullptr ? from : source.data(), to,
                           one.from, one.to});
        }
        return out;
    }

    /// The wire form and 16 bytes of poison after it; the target memory with poison between.
    [[nodiscard]] std::vector<std::byte> packed_by_host() const {
        std::vector<std::byte> wire(static_cast<std::size_t>(wire_bytes) + 16, std::byte{0xA5});
        for (const One& one : copies) {
            const StridedCopy copy = packed_from_source(one.copy, one.wire_offset, one.wire_item());
            move(copy, one.from, one.wire(), source.data(), wire.data());
        }
        return wire;
    }
    [[nodiscard]] std::vector<std::byte> scattered_by_host() const {
        const std::vector<std::byte> wire = packed_by_host();
        std::vector<std::byte> target(target_bytes, std::byte{0x5A});
        for (const One& one : copies) {
            StridedCopy copy = destination_from_packed(one.copy, one.wire_offset, one.wire_item());
            copy.item = one.wire_item();
            move(copy, one.wire(), one.to, wire.data(), target.data());
        }
        return target;
    }

private:
    static void move(const StridedCopy& copy, DType from, DType to, const std::byte* source, std::byte* target) {
        if (from == to) {
            strided_copy(copy, source, target);
        } else {
            converting_copy(copy, from, to, source, target);
        }
    }
};

class RandomCopies {
public:
    explicit RandomCopies(std::uint64_t seed) : random_(seed) {}

    /// `count` copies whose offsets, strides and items are multiples of `grain` bytes.
    CopySet make(int count, std::int64_t grain) { return make(count, grain, {}, {}); }
    /// The same, converting.
    CopySet make(int count, std::int64_t grain, std::optional<DType> from, std::optional<DType> to) {
        CopySet set;
        std::int64_t source_end = 0;
        std::int64_t target_end = 0;
        for (int i = 0; i < count; ++i) {
            CopySet::One one;
            one.copy.item = from ? size_of(*from) : grain * (1 + below(i % 2 == 0 ? 40 : 3));
            std::int64_t source_step = one.copy.item;
            std::int64_t target_step = to ? size_of(*to) : one.copy.item;
            if (from) {
                one.from = *from;
                one.to = *to;
            }
            const int rank = static_cast<int>(below(5));
            // From the innermost out, each dimension beyond the last, with or without a gap.
            for (int d = 0; d < rank; ++d) {
                const std::int64_t size = 1 + below(d == 0 && from ? 64 : 6);
                one.copy.sizes.insert(one.copy.sizes.begin(), size);
                const std::int64_t gap = from ? size_of(*from) : grain;
                const std::int64_t target_gap = to ? size_of(*to) : grain;
                source_step += below(3) == 0 ? gap * below(5) : 0;
                target_step += below(3) == 0 ? target_gap * below(5) : 0;
                one.copy.src_strides.insert(one.copy.src_strides.begin(), source_step);
                one.copy.dst_strides.insert(one.copy.dst_strides.begin(), target_step);
                source_step *= size;
                target_step *= size;
            }
            one.copy.src_offset = source_end + grain * below(4);
            one.copy.dst_offset = target_end + grain * below(4);
            source_end = one.copy.src_offset + source_step;
            target_end = one.copy.dst_offset + target_step;
            one.wire_offset = set.wire_bytes;
            set.wire_bytes += one.wire_bytes();
            set.copies.push_back(one);
        }
        set.source.resize(static_cast<std::size_t>(source_end));
        for (std::byte& byte : set.source) {
            byte = static_cast<std::byte>(random_());
        }
        set.target_bytes = static_cast<std::size_t>(target_end);
        return set;
    }

private:
    std::int64_t below(std::int64_t limit) {
        return std::uniform_int_distribution<std::int64_t>(0, limit - 1)(random_);
    }
    std::mt19937_64 random_;
};

}  // namespace sluice::test
