#include "runtime/services/buffer.h"

#include "runtime/base/units.h"

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <limits>
#include <string>
#include <sys/mman.h>
#include <system_error>

namespace sluice {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::int64_t kMaxSize = std::numeric_limits<std::int64_t>::max() - 2 * static_cast<std::int64_t>(kHugePage);

constexpr std::size_t round_up(std::size_t value, std::size_t unit) { return (value + unit - 1) / unit * unit; }

void unmap(std::byte* data, std::size_t size) { ::munmap(data, round_up(size, kPage)); }

Status no_memory(std::int64_t size, int error) {
    return {StatusCode::kResourceExhausted, "cannot allocate " + format_bytes(size) +
                                                " of host memory: " + std::generic_category().message(error) +
                                                "; use fewer ranks per host, or smaller staging, slots or credit"};
}

}  // namespace

Result<Buffer> Buffer::allocate(std::int64_t size, MemoryKind kind) {
    if (kind != MemoryKind::kHost) {
        return Status(StatusCode::kUnsupported, std::string("cannot allocate ") + to_string(kind) +
                                                    " memory without a CUDA device; use host memory");
    }
    if (size < 0 || size > kMaxSize) {
        return no_memory(size, ENOMEM);
    }
    if (size == 0) {
        return Buffer(nullptr, 0, kind, unmap);
    }
    // A huge page needs an aligned address, which mmap does not give: map more and cut off both ends.
    const std::size_t mapped = round_up(static_cast<std::size_t>(size), kPage);
    const bool huge = mapped >= kHugePage;
    const std::size_t slack = huge ? kHugePage : 0;
    void* address = ::mmap(nullptr, mapped + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (address == MAP_FAILED) {
        return no_memory(size, errno);
    }
    auto* data = static_cast<std::byte*>(address);
    if (huge) {
        const auto at = reinterpret_cast<std::uintptr_t>(data);
        const std::size_t before = round_up(at, kHugePage) - at;
        if (before != 0) {
            ::munmap(data, before);
        }
        if (before != slack) {
            ::munmap(data + before + mapped, slack - before);
        }
        data += before;
        // Only a wish; memory on small pages works as well.
        [[maybe_unused]] const int ignored = ::madvise(data, mapped, MADV_HUGEPAGE);
    }
    return Buffer(data, static_cast<std::size_t>(size), kind, unmap);
}

Result<StagingArena> StagingArena::create(std::int64_t capacity) {
    SLUICE_ASSIGN_OR_RETURN(Buffer buffer, Buffer::allocate(capacity, MemoryKind::kHost));
    return StagingArena(std::move(buffer));
}

StagingArena::StagingArena(Buffer memory)
    : buffer_(std::move(memory)),
      runs_(round_up(buffer_.size(), kPage) / kPage),
      capacity_(static_cast<std::int64_t>(buffer_.size())) {
    if (!runs_.empty()) {
        set_run(0, static_cast<std::int64_t>(runs_.size()), 0);
    }
}

void StagingArena::set_run(std::int64_t first, std::int64_t pages, std::int64_t reserved) {
    run_at(first + pages - 1).pages = pages;
    run_at(first) = {pages, reserved};
}

std::optional<std::int64_t> StagingArena::try_reserve(std::int64_t size) {
    assert(size >= 1);
    if (size > capacity_ - used_) {
        return std::nullopt;
    }
    const auto pages = static_cast<std::int64_t>(round_up(static_cast<std::size_t>(size), kPage) / kPage);
    const auto end = static_cast<std::int64_t>(runs_.size());
    for (std::int64_t first = 0; first < end; first += run_at(first).pages) {
        const Run run = run_at(first);
        const std::int64_t offset = first * static_cast<std::int64_t>(kPage);
        // The last page may lie only in part within the capacity.
        if (run.reserved != 0 || run.pages < pages || offset + size > capacity_) {
            continue;
        }
        if (run.pages > pages) {
            set_run(first + pages, run.pages - pages, 0);
        }
        set_run(first, pages, size);
        used_ += size;
        peak_ = std::max(peak_, used_);
        return offset;
    }
    return std::nullopt;
}

void StagingArena::release(std::int64_t offset) {
    std::int64_t first = offset / static_cast<std::int64_t>(kPage);
    std::int64_t pages = run_at(first).pages;
    assert(offset % static_cast<std::int64_t>(kPage) == 0 && run_at(first).reserved != 0);
    used_ -= run_at(first).reserved;
    const std::int64_t next = first + pages;
    if (next < static_cast<std::int64_t>(runs_.size()) && run_at(next).reserved == 0) {
        pages += run_at(next).pages;
    }
    // The page before is the last one of the run before, and says how long that is.
    if (first > 0 && run_at(first - run_at(first - 1).pages).reserved == 0) {
        const std::int64_t before = run_at(first - 1).pages;
        first -= before;
        pages += before;
    }
    set_run(first, pages, 0);
}

}  // namespace sluice
