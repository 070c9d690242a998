#include "runtime/exchange/bootstrap.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace sluice {

namespace {

// A message is this header, little endian, and the blob: magic (4 bytes), epoch (4), kind (1), length of the blob (8).
constexpr std::uint32_t kMagic = 0x53'4c'42'31;  // "1BLS" in memory
constexpr std::size_t kHeaderBytes = 17;

void put(std::byte* out, std::uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) {
        out[i] = static_cast<std::byte>(value >> (8 * i));
    }
}

std::uint64_t get(const std::byte* in, int bytes) {
    std::uint64_t value = 0;
    for (int i = 0; i < bytes; ++i) {
        value |= static_cast<std::uint64_t>(in[i]) << (8 * i);
    }
    return value;
}

struct Header {
    std::uint32_t epoch;
    std::uint8_t kind;
};

Result<Header> parse_header(std::span<const std::byte> message, int from) {
    if (message.size() < kHeaderBytes || get(message.data(), 4) != kMagic ||
        get(message.data() + 9, 8) != message.size() - kHeaderBytes) {
        return internal_error(fmt::format(
            "bootstrap: rank {} sent {} bytes that are no message of ours; do all ranks run the same program?", from,
            message.size()));
    }
    return Header{static_cast<std::uint32_t>(get(message.data() + 4, 4)), static_cast<std::uint8_t>(message[8])};
}

std::string list_of(const std::vector<int>& ranks) {
    constexpr std::size_t kMost = 16;
    std::string text;
    for (std::size_t i = 0; i < ranks.size() && i < kMost; ++i) {
        text += fmt::format("{}{}", i == 0 ? "" : ", ", ranks[i]);
    }
    return ranks.size() > kMost ? fmt::format("{} and {} more", text, ranks.size() - kMost) : text;
}

}  // namespace

std::vector<int> Bootstrap::others() const {
    std::vector<int> ranks;
    for (int r = 0; r < size(); ++r) {
        if (r != rank()) {
            ranks.push_back(r);
        }
    }
    return ranks;
}

Status Bootstrap::send(int to, Kind kind, std::span<const std::byte> blob) {
    if (blob.size() > kMostBytes) {
        return Status(
            StatusCode::kResourceExhausted,
            fmt::format("bootstrap: a message of {} bytes to rank {}; the most is {}", blob.size(), to, kMostBytes),
            to);
    }
    Blob message(kHeaderBytes + blob.size());
    put(message.data(), kMagic, 4);
    put(message.data() + 4, epoch_, 4);
    message[8] = static_cast<std::byte>(kind);
    put(message.data() + 9, blob.size(), 8);
    std::copy(blob.begin(), blob.end(), message.begin() + kHeaderBytes);
    return start_send(to, std::move(message));
}

Status Bootstrap::receive(Kind kind, std::vector<int> missing, const std::function<void(int, Blob)>& take,
                          Deadline deadline) {
    const auto try_take = [&](Received& received) -> Result<bool> {
        SLUICE_ASSIGN_OR_RETURN(const Header header, parse_header(received.message, received.from));
        const auto expected = std::find(missing.begin(), missing.end(), received.from);
        if (header.epoch == epoch_ && header.kind == static_cast<std::uint8_t>(kind) && expected != missing.end()) {
            missing.erase(expected);
            received.message.erase(received.message.begin(), received.message.begin() + kHeaderBytes);
            take(received.from, std::move(received.message));
            return true;
        }
        if (header.epoch <= epoch_) {
            return internal_error(
                fmt::format("bootstrap: rank {} sent kind {} of collective {} during kind {} of collective {}; "
                            "do all ranks run the same program?",
                            received.from, header.kind, header.epoch, static_cast<int>(kind), epoch_));
        }
        return false;
    };
    std::vector<Received> early = std::exchange(early_, {});
    for (Received& received : early) {
        SLUICE_ASSIGN_OR_RETURN(const bool taken, try_take(received));
        if (!taken) {
            early_.push_back(std::move(received));
        }
    }
    for (int tries = 0; !missing.empty();) {
        SLUICE_ASSIGN_OR_RETURN(std::optional<Received> received, poll());
        if (received) {
            tries = 0;
            SLUICE_ASSIGN_OR_RETURN(const bool taken, try_take(*received));
            if (!taken) {
                early_.push_back(std::move(*received));
            }
        } else if (deadline.passed()) {
            return deadline_exceeded(
                fmt::format("bootstrap: rank {} has not heard from {} of {} ranks before the deadline: {}", rank(),
                            missing.size(), size(), list_of(missing)));
        } else {
            pause(tries++);
        }
    }
    return ok_status();
}

Status Bootstrap::flush(Deadline deadline) {
    for (int tries = 0; !sends_done();) {
        SLUICE_ASSIGN_OR_RETURN(std::optional<Received> received, poll());
        if (received) {
            early_.push_back(std::move(*received));
        } else if (deadline.passed()) {
            return deadline_exceeded(
                fmt::format("bootstrap: messages of rank {} were not taken before the deadline", rank()));
        } else {
            pause(tries++);
        }
    }
    return ok_status();
}

Status Bootstrap::start_collective() {
    if (failed_) {
        return internal_error("bootstrap: used again after it has failed");
    }
    ++epoch_;
    return ok_status();
}

Status Bootstrap::end_collective(Status status) {
    failed_ = failed_ || !status.ok();
    return status;
}

Status Bootstrap::collect(int root, std::span<const std::byte> blob, std::vector<Blob>& blobs, Deadline deadline) {
    if (rank() != root) {
        SLUICE_RETURN_IF_ERROR(send(root, Kind::kGather, blob));
        return flush(deadline);
    }
    blobs.resize(static_cast<std::size_t>(size()));
    blobs[static_cast<std::size_t>(root)].assign(blob.begin(), blob.end());
    return receive(
        Kind::kGather, others(),
        [&](int from, Blob received) { blobs[static_cast<std::size_t>(from)] = std::move(received); }, deadline);
}

Status Bootstrap::distribute(int root, const std::vector<Blob>& blobs, Blob& mine, Deadline deadline) {
    if (rank() != root) {
        return receive(
            Kind::kScatter, {root}, [&](int /*from*/, Blob received) { mine = std::move(received); }, deadline);
    }
    if (blobs.size() != static_cast<std::size_t>(size())) {
        return internal_error(fmt::format("bootstrap: {} blobs to scatter to {} ranks", blobs.size(), size()));
    }
    for (const int to : others()) {
        SLUICE_RETURN_IF_ERROR(send(to, Kind::kScatter, blobs[static_cast<std::size_t>(to)]));
    }
    mine = blobs[static_cast<std::size_t>(root)];
    return flush(deadline);
}

Status Bootstrap::collect_everywhere(std::span<const std::byte> blob, std::vector<Blob>& blobs, Deadline deadline) {
    blobs.resize(static_cast<std::size_t>(size()));
    blobs[static_cast<std::size_t>(rank())].assign(blob.begin(), blob.end());
    // Each to each rather than through one rank, so that everybody can name the ranks that are missing.
    for (const int to : others()) {
        SLUICE_RETURN_IF_ERROR(send(to, Kind::kAllGather, blob));
    }
    SLUICE_RETURN_IF_ERROR(receive(
        Kind::kAllGather, others(),
        [&](int from, Blob received) { blobs[static_cast<std::size_t>(from)] = std::move(received); }, deadline));
    return flush(deadline);
}

Result<std::vector<Bootstrap::Blob>> Bootstrap::gather(int root, std::span<const std::byte> blob, Deadline deadline) {
    SLUICE_RETURN_IF_ERROR(start_collective());
    std::vector<Blob> blobs;
    SLUICE_RETURN_IF_ERROR(end_collective(collect(root, blob, blobs, deadline)));
    return blobs;
}

Result<Bootstrap::Blob> Bootstrap::scatter(int root, const std::vector<Blob>& blobs, Deadline deadline) {
    SLUICE_RETURN_IF_ERROR(start_collective());
    Blob mine;
    SLUICE_RETURN_IF_ERROR(end_collective(distribute(root, blobs, mine, deadline)));
    return mine;
}

Result<std::vector<Bootstrap::Blob>> Bootstrap::all_gather(std::span<const std::byte> blob, Deadline deadline) {
    SLUICE_RETURN_IF_ERROR(start_collective());
    std::vector<Blob> blobs;
    SLUICE_RETURN_IF_ERROR(end_collective(collect_everywhere(blob, blobs, deadline)));
    return blobs;
}

Status Bootstrap::barrier(Deadline deadline) { return all_gather({}, deadline).status(); }

}  // namespace sluice
