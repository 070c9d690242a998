#pragma once

#include "runtime/base/status.h"
#include "runtime/services/deadline.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace sluice {

/// How ranks find each other and exchange what set-up needs, before they have endpoints. All ranks call the same
/// collectives in the same order, each from one thread. Waits sleep; none goes past its deadline, and a deadline error
/// names the ranks that are missing. After an error the bootstrap is of no further use.
class Bootstrap {
public:
    using Blob = std::vector<std::byte>;
    /// The longest message; what is longer is refused by the sender. If that is rank 0, or the root of a scatter, all end with this cause.
    static constexpr std::size_t kMostBytes = std::size_t{1} << 30;

    virtual ~Bootstrap() = default;
    [[nodiscard]] virtual int rank() const = 0;
    [[nodiscard]] virtual int size() const = 0;

    /// At `root`: everybody's blob, by rank. Elsewhere an empty list.
    Result<std::vector<Blob>> gather(int root, std::span<const std::byte> blob, Deadline deadline);
    /// `blobs` counts at `root` only, one for each rank; each rank gets its own.
    Result<Blob> scatter(int root, const std::vector<Blob>& blobs, Deadline deadline);
    /// Everybody's blob at everybody, by rank; by way of rank 0, which also tells the others whom it misses at its deadline: they
    /// wait for its word a second longer than for anything else.
    Result<std::vector<Blob>> all_gather(std::span<const std::byte> blob, Deadline deadline);
    /// Returns when all ranks have called it.
    Status barrier(Deadline deadline);
    /// As after a collective that failed: for who has learned otherwise that a rank is not to be waited for. The others do the same.
    void abandon() { failed_ = true; }

protected:
    explicit Bootstrap(std::size_t most_bytes = kMostBytes) : most_bytes_(most_bytes) {}
    /// A header and a blob, ready to send; one message may be on its way to many ranks.
    using Message = std::shared_ptr<const Blob>;
    struct Received {
        int from = 0;
        Message message;
    };
    /// Starts to send to another rank; the implementation keeps the message for as long as it needs it.
    virtual Status start_send(int to, Message message) = 0;
    /// Some message that has arrived, if there is one; also moves sends on. Does not wait.
    virtual Result<std::optional<Received>> poll() = 0;
    /// True when all that was sent is out of our hands.
    virtual bool sends_done() = 0;
    /// Waits a little for something to poll. `tries` counts the fruitless polls before it.
    virtual void pause(int tries) = 0;
    /// A collective has failed, or the bootstrap was abandoned.
    [[nodiscard]] bool failed() const { return failed_; }

private:
    enum class Kind : std::uint8_t { kGather = 1, kScatter = 2, kAllGather = 3, kEverything = 4, kFailed = 5 };
    using Take = std::function<void(int from, Kind kind, std::span<const std::byte> blob)>;

    [[nodiscard]] Status check_size(const std::vector<int>& to, std::size_t size) const;
    Status send(const std::vector<int>& to, Kind kind, std::span<const std::byte> blob);
    /// Waits for one message of this collective from each rank in `missing`, in any order; those that have come are no longer in it.
    /// `kinds` are those that may come.
    Status receive(std::initializer_list<Kind> kinds, std::vector<int>& missing, const Take& take, Deadline deadline);
    /// Waits for a message of `kind` from one rank, which may tell() of a failure instead.
    Status receive_word(int from, Kind kind, const std::function<Status(std::span<const std::byte>)>& take,
                        Deadline deadline);
    Status flush(Deadline deadline);
    /// Tells ranks that wait for our word that none comes, as far as they can still be told. Returns the cause.
    Status tell(const std::vector<int>& ranks, Status why);
    [[nodiscard]] std::vector<int> others() const;
    Status collect(int root, std::span<const std::byte> blob, std::vector<Blob>& blobs, Deadline deadline);
    Status distribute(int root, const std::vector<Blob>& blobs, Blob& mine, Deadline deadline);
    Status collect_for_all(std::span<const std::byte> blob, std::vector<Blob>& blobs, Deadline deadline);
    Status collect_from_first(std::span<const std::byte> blob, std::vector<Blob>& blobs, Deadline deadline);
    Status start_collective();
    Status end_collective(Status status);

    const std::size_t most_bytes_;
    bool failed_ = false;
    std::uint32_t epoch_ = 0;      // number of the collective, equal on all ranks
    std::vector<Received> early_;  // from ranks that are a collective ahead
};

}  // namespace sluice
