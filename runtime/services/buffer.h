#pragma once

#include "runtime/base/memory_kind.h"
#include "runtime/base/status.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace sluice {

/// Memory that we own, of a stated kind. Move-only; the address stays the same for its life, also when it is moved.
class Buffer {
public:
    /// Gives back what was adopted. Called once, on the thread that destroys the buffer.
    using Release = void (*)(std::byte* data, std::size_t size);

    /// Zeroed memory, page aligned, on huge pages where the system has some to give. `size` >= 0; 0 has no address.
    /// Only kHost is made here; memory of other kinds is allocated by those who know their device, and adopted.
    static Result<Buffer> allocate(std::int64_t size, MemoryKind kind);
    static Buffer adopt(std::byte* data, std::int64_t size, MemoryKind kind, Release release) {
        return {data, static_cast<std::size_t>(size), kind, release};
    }

    Buffer(Buffer&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)),
          size_(std::exchange(other.size_, 0)),
          kind_(other.kind_),
          release_(other.release_) {}
    Buffer& operator=(Buffer&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
        std::swap(kind_, other.kind_);
        std::swap(release_, other.release_);
        return *this;
    }
    ~Buffer() {
        if (data_ != nullptr) {
            release_(data_, size_);
        }
    }

    [[nodiscard]] std::byte* data() const { return data_; }
    [[nodiscard]] std::size_t size() const { return size_; }
    [[nodiscard]] std::span<std::byte> bytes() const { return {data_, size_}; }
    [[nodiscard]] MemoryKind kind() const { return kind_; }

private:
    Buffer(std::byte* data, std::size_t size, MemoryKind kind, Release release)
        : data_(data), size_(size), kind_(kind), release_(release) {}

    std::byte* data_;
    std::size_t size_;
    MemoryKind kind_;
    Release release_;
};

/// Memory of a fixed size, from which pieces of any size are reserved for a while. Nothing grows and nothing is
/// allocated after create(). Not thread-safe.
///
/// First fit: a piece that has room nowhere has to wait until neighbours come free. Whoever waits must therefore hold
/// back other reservations, or smaller ones may take its place for ever; once nothing is reserved any size up to
/// capacity() fits.
class StagingArena {
public:
    /// Of host memory.
    static Result<StagingArena> create(std::int64_t capacity);
    /// Of this memory, of whatever kind: it is never touched.
    explicit StagingArena(Buffer memory);

    /// Offset of a free piece (a multiple of 4096), or nothing when there is none now. `size` >= 1; above capacity() never.
    std::optional<std::int64_t> try_reserve(std::int64_t size);
    /// Gives back the piece that try_reserve returned `offset` for.
    void release(std::int64_t offset);

    [[nodiscard]] std::byte* data() const { return buffer_.data(); }
    [[nodiscard]] std::span<std::byte> bytes() const { return buffer_.bytes(); }
    [[nodiscard]] MemoryKind kind() const { return buffer_.kind(); }
    [[nodiscard]] std::int64_t capacity() const { return capacity_; }
    /// Sum of the sizes reserved now, and the largest that it has been; never above capacity().
    [[nodiscard]] std::int64_t used() const { return used_; }
    [[nodiscard]] std::int64_t peak() const { return peak_; }

private:
    /// The arena is a row of runs, free or reserved, each a whole number of pages. A run is described at the index of
    /// its first page, and its length also at its last one, so that both neighbours can be found.
    struct Run {
        std::int64_t pages = 0;
        std::int64_t reserved = 0;  ///< Bytes asked for; 0 = free.
    };

    void set_run(std::int64_t first, std::int64_t pages, std::int64_t reserved);
    Run& run_at(std::int64_t page) { return runs_[static_cast<std::size_t>(page)]; }

    Buffer buffer_;
    std::vector<Run> runs_;
    std::int64_t capacity_;
    std::int64_t used_ = 0;
    std::int64_t peak_ = 0;
};

}  // namespace sluice
