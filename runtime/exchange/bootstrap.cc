#include "runtime/exchange/bootstrap.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace sluice {

namespace {

// How much longer than its own deadline a rank waits for the word of rank 0, whose deadline may be a little later.
constexpr auto kWordOfFirst = std::chrono::seconds(1);

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

// Blobs one after the other, each behind its length (8 bytes).
Bootstrap::Blob join(const std::vector<Bootstrap::Blob>& blobs) {
    std::size_t bytes = 0;
    for (const Bootstrap::Blob& blob : blobs) {
        bytes += 8 + blob.size();
    }
    Bootstrap::Blob joined(bytes);
    std::byte* out = joined.data();
    for (const Bootstrap::Blob& blob : blobs) {
        put(out, blob.size(), 8);
        out = std::copy(blob.begin(), blob.end(), out + 8);
    }
    return joined;
}

// False when `joined` does not hold `count` blobs and nothing else.
bool split(std::span<const std::byte> joined, std::size_t count, std::vector<Bootstrap::Blob>& blobs) {
    blobs.resize(count);
    for (Bootstrap::Blob& blob : blobs) {
        if (joined.size() < 8) {
            return false;
        }
        const std::uint64_t bytes = get(joined.data(), 8);
        joined = joined.subspan(8);
        if (joined.size() < bytes) {
            return false;
        }
        blob.assign(joined.begin(), joined.begin() + static_cast<std::ptrdiff_t>(bytes));
        joined = joined.subspan(static_cast<std::size_t>(bytes));
    }
    return joined.empty();
}

Deadline later(Deadline deadline, Deadline::Clock::duration span) {
    return deadline.when() > Deadline::Clock::time_point::max() - span ? Deadline::never()
                                                                       : Deadline::at(deadline.when() + span);
}

// What Bootstrap::tell() says.
Status failure_in(std::span<const std::byte> word) {
    const auto code = word.empty() ? StatusCode::kOk : static_cast<StatusCode>(word[0]);
    if (code == StatusCode::kOk || code > StatusCode::kInternal) {
        return internal_error(
            "bootstrap: rank 0 has failed, and its word on it is none; do all ranks run the same program?");
    }
    return {code, std::string(reinterpret_cast<const char*>(word.data()) + 1, word.size() - 1)};
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

Status Bootstrap::check_size(const std::vector<int>& to, std::size_t size) const {
    if (size > most_bytes_) {
        return Status(
            StatusCode::kResourceExhausted,
            fmt::format("bootstrap: a message of {} bytes to {}; the most is {}", size, list_of(to), most_bytes_),
            to.front());
    }
    return ok_status();
}

Status Bootstrap::send(const std::vector<int>& to, Kind kind, std::span<const std::byte> blob) {
    SLUICE_RETURN_IF_ERROR(check_size(to, blob.size()));
    auto message = std::make_shared<Blob>(kHeaderBytes + blob.size());
    put(message->data(), kMagic, 4);
    put(message->data() + 4, epoch_, 4);
    (*message)[8] = static_cast<std::byte>(kind);
    put(message->data() + 9, blob.size(), 8);
    std::copy(blob.begin(), blob.end(), message->begin() + kHeaderBytes);
    for (const int rank : to) {
        SLUICE_RETURN_IF_ERROR(start_send(rank, message));
    }
    return ok_status();
}

Status Bootstrap::receive(std::initializer_list<Kind> kinds, std::vector<int>& missing, const Take& take,
                          Deadline deadline) {
    const auto try_take = [&](const Received& received) -> Result<bool> {
        SLUICE_ASSIGN_OR_RETURN(const Header header, parse_header(*received.message, received.from));
        const auto expected = std::find(missing.begin(), missing.end(), received.from);
        const auto kind =
            std::find(kinds.begin(), kinds.end(), static_cast<Kind>(header.kind));  // of any value: compared only
        if (header.epoch == epoch_ && kind != kinds.end() && expected != missing.end()) {
            missing.erase(expected);
            take(received.from, *kind, std::span(*received.message).subspan(kHeaderBytes));
            return true;
        }
        if (header.epoch <= epoch_) {
            return internal_error(
                fmt::format("bootstrap: rank {} sent kind {} of collective {} during kind {} of collective {}; "
                            "do all ranks run the same program?",
                            received.from, header.kind, header.epoch, static_cast<int>(*kinds.begin()), epoch_));
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

Status Bootstrap::receive_word(int from, Kind kind, const std::function<Status(std::span<const std::byte>)>& take,
                               Deadline deadline) {
    std::vector<int> missing{from};
    Status outcome;
    SLUICE_RETURN_IF_ERROR(receive(
        {kind, Kind::kFailed}, missing,
        [&](int /*from*/, Kind came, std::span<const std::byte> word) {
            outcome = came == Kind::kFailed ? failure_in(word) : take(word);
        },
        deadline));
    return outcome;
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

Status Bootstrap::tell(const std::vector<int>& ranks, Status why) {
    Blob word{static_cast<std::byte>(why.code())};
    const auto text = std::as_bytes(std::span(why.message()));
    word.insert(word.end(), text.begin(), text.end());
    if (!ranks.empty() && send(ranks, Kind::kFailed, word).ok()) {
        static_cast<void>(flush(Deadline::after(kWordOfFirst)));
    }
    return why;
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
        SLUICE_RETURN_IF_ERROR(send({root}, Kind::kGather, blob));
        return flush(deadline);
    }
    blobs.resize(static_cast<std::size_t>(size()));
    blobs[static_cast<std::size_t>(root)].assign(blob.begin(), blob.end());
    std::vector<int> missing = others();
    return receive(
        {Kind::kGather}, missing,
        [&](int from, Kind /*kind*/, std::span<const std::byte> received) {
            blobs[static_cast<std::size_t>(from)].assign(received.begin(), received.end());
        },
        deadline);
}

Status Bootstrap::distribute(int root, const std::vector<Blob>& blobs, Blob& mine, Deadline deadline) {
    if (rank() != root) {
        return receive_word(
            root, Kind::kScatter,
            [&](std::span<const std::byte> received) {
                mine.assign(received.begin(), received.end());
                return ok_status();
            },
            deadline);
    }
    if (blobs.size() != static_cast<std::size_t>(size())) {
        return internal_error(fmt::format("bootstrap: {} blobs to scatter to {} ranks", blobs.size(), size()));
    }
    const std::vector<int> to = others();
    // Before anybody has its own: who does takes this collective for a good one.
    for (const int rank : to) {
        if (Status short_enough = check_size({rank}, blobs[static_cast<std::size_t>(rank)].size());
            !short_enough.ok()) {
            return tell(to, std::move(short_enough));
        }
    }
    for (auto next = to.begin(); next != to.end(); ++next) {
        if (Status sent = send({*next}, Kind::kScatter, blobs[static_cast<std::size_t>(*next)]); !sent.ok()) {
            return tell({next, to.end()}, std::move(sent));
        }
    }
    mine = blobs[static_cast<std::size_t>(root)];
    return flush(deadline);
}

Status Bootstrap::collect_for_all(std::span<const std::byte> blob, std::vector<Blob>& blobs, Deadline deadline) {
    blobs.resize(static_cast<std::size_t>(size()));
    blobs[0].assign(blob.begin(), blob.end());
    std::vector<int> missing = others();
    Status received = receive(
        {Kind::kAllGather}, missing,
        [&](int from, Kind /*kind*/, std::span<const std::byte> part) {
            blobs[static_cast<std::size_t>(from)].assign(part.begin(), part.end());
        },
        deadline);
    std::vector<int> here = others();
    if (!received.ok()) {
        std::erase_if(here, [&](int rank) { return std::find(missing.begin(), missing.end(), rank) != missing.end(); });
        return tell(here, std::move(received));
    }
    if (here.empty()) {
        return ok_status();
    }
    if (Status sent = send(here, Kind::kEverything, join(blobs)); !sent.ok()) {
        return tell(here, std::move(sent));
    }
    return flush(deadline);
}

Status Bootstrap::collect_from_first(std::span<const std::byte> blob, std::vector<Blob>& blobs, Deadline deadline) {
    SLUICE_RETURN_IF_ERROR(send({0}, Kind::kAllGather, blob));
    SLUICE_RETURN_IF_ERROR(receive_word(
        0, Kind::kEverything,
        [&](std::span<const std::byte> word) {
            return split(word, static_cast<std::size_t>(size()), blobs)
                       ? ok_status()
                       : internal_error(fmt::format(
                             "bootstrap: rank 0 sent {} bytes that do not hold one blob for each of {} ranks; do "
                             "all ranks run the same program?",
                             word.size(), size()));
        },
        later(deadline, kWordOfFirst)));
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
    SLUICE_RETURN_IF_ERROR(end_collective(rank() == 0 ? collect_for_all(blob, blobs, deadline)
                                                      : collect_from_first(blob, blobs, deadline)));
    return blobs;
}

Status Bootstrap::barrier(Deadline deadline) { return all_gather({}, deadline).status(); }

}  // namespace sluice
