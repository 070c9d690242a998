#include "bench/relay.h"

#include <fmt/format.h>

// The C++ bindings of MPI-2, which the header would drag in, need a library of their own.
#define OMPI_SKIP_MPICXX 1   // NOLINT(cppcoreguidelines-macro-usage)
#define MPICH_SKIP_MPICXX 1  // NOLINT(cppcoreguidelines-macro-usage)
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace sluice::bench {
namespace {

constexpr int kFirstTag = 0x1000;  // Away from the bootstrap's.
// Open MPI's own waits spin, and there are more ranks than cores. Eight ranks that look every 500 us cost a tenth of a core; what
// comes meanwhile waits in the sockets, and the window covers it.
constexpr std::chrono::microseconds kNap{500};
// A look moves about one fragment of one message, and only the last of a message completes anything.
constexpr int kLooks = 8;

Status check(int code, const char* call) {
    return code == MPI_SUCCESS ? ok_status() : internal_error(fmt::format("relay: {} failed with {}", call, code));
}

/// One rank's part of a relay.
class Relay {
public:
    Relay(std::span<const RelayMessage> messages, int window, std::span<std::byte> slots, RelayEnds& ends)
        : messages_(messages), ends_(ends), slots_(slots) {
        MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
        for (std::size_t i = 0; i < messages.size(); ++i) {
            const std::vector<int>& chain = messages[i].chain;
            if (std::find(chain.begin(), chain.end(), rank_) != chain.end()) {
                mine_.push_back(i);
            }
        }
        const auto count = static_cast<std::size_t>(window);
        slot_bytes_ = slots.size() / count;
        states_.resize(count);
        requests_.assign(count, MPI_REQUEST_NULL);
        finished_.resize(count);
    }

    Status run() {
        int idle = 0;
        while (done_ < mine_.size()) {
            SLUICE_RETURN_IF_ERROR(start());
            int count = 0;
            SLUICE_RETURN_IF_ERROR(check(MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count,
                                                      finished_.data(), MPI_STATUSES_IGNORE),
                                         "MPI_Testsome"));
            if (count <= 0) {  // MPI_UNDEFINED is negative: nothing is under way.
                if (++idle % kLooks == 0) {
                    std::this_thread::sleep_for(kNap);
                }
                continue;
            }
            for (int i = 0; i < count; ++i) {
                SLUICE_RETURN_IF_ERROR(advance(static_cast<std::size_t>(finished_[static_cast<std::size_t>(i)])));
            }
        }
        return ok_status();
    }

private:
    struct Slot {
        std::size_t message = 0;
        bool busy = false;
        bool sending = false;
    };

    [[nodiscard]] std::span<std::byte> bytes(std::size_t slot) const {
        return slots_.subspan(slot * slot_bytes_, static_cast<std::size_t>(messages_[states_[slot].message].bytes));
    }

    // In the order of the list only: the oldest message that is not through is then under way on every rank of its chain.
    Status start() {
        for (std::size_t slot = 0; slot < states_.size() && next_ < mine_.size(); ++slot) {
            if (states_[slot].busy) {
                continue;
            }
            const std::size_t message = mine_[next_];
            const std::vector<int>& chain = messages_[message].chain;
            const bool head = chain.front() == rank_;
            if (head && !ends_.ready(message)) {
                return ok_status();
            }
            states_[slot] = {message, true, head};
            ++next_;
            if (head) {
                ends_.fill(message, bytes(slot));
                SLUICE_RETURN_IF_ERROR(send(slot, chain[1]));
            } else {
                const int from = *(std::find(chain.begin(), chain.end(), rank_) - 1);
                const std::span<std::byte> into = bytes(slot);
                SLUICE_RETURN_IF_ERROR(check(MPI_Irecv(into.data(), static_cast<int>(into.size()), MPI_BYTE, from,
                                                       tag(message), MPI_COMM_WORLD, &requests_[slot]),
                                             "MPI_Irecv"));
            }
        }
        return ok_status();
    }

    Status advance(std::size_t slot) {
        Slot& state = states_[slot];
        if (!state.sending) {
            const std::vector<int>& chain = messages_[state.message].chain;
            const auto next = std::find(chain.begin(), chain.end(), rank_) + 1;
            if (next != chain.end()) {  // On its way before this rank looks at it.
                state.sending = true;
                SLUICE_RETURN_IF_ERROR(send(slot, *next));
            }
            ends_.take(state.message, bytes(slot));
            if (state.sending) {
                return ok_status();
            }
        }
        state.busy = false;
        ++done_;
        return ok_status();
    }

    Status send(std::size_t slot, int to) {
        const std::span<std::byte> out = bytes(slot);
        return check(MPI_Isend(out.data(), static_cast<int>(out.size()), MPI_BYTE, to, tag(states_[slot].message),
                               MPI_COMM_WORLD, &requests_[slot]),
                     "MPI_Isend");
    }

    static int tag(std::size_t message) { return kFirstTag + static_cast<int>(message); }

    std::span<const RelayMessage> messages_;
    RelayEnds& ends_;
    std::span<std::byte> slots_;
    std::size_t slot_bytes_ = 0;
    int rank_ = 0;
    std::vector<std::size_t> mine_;
    std::size_t next_ = 0;
    std::size_t done_ = 0;
    std::vector<Slot> states_;
    std::vector<MPI_Request> requests_;
    std::vector<int> finished_;
};

}  // namespace

Status relay(std::span<const RelayMessage> messages, int window, std::span<std::byte> slots, RelayEnds& ends) {
    return Relay(messages, window, slots, ends).run();
}

}  // namespace sluice::bench
