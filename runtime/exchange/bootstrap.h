#pragma once

#include "runtime/base/status.h"
#include "runtime/services/deadline.h"

#include <cstddef>
#include <cstdint>
#include <functional>
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
    /// The longest message; what is longer is refused by the sender.
    static constexpr std::size_t kMostBytes = std::size_t{1} << 30;

    virtual ~Bootstrap() = default;
    [[nodiscard]] virtual int rank() const = 0;
    [[nodiscard]] virtual int size() const = 0;

    /// At `root`: everybody's blob, by rank. Elsewhere an empty list.
    Result<std::vector<Blob>> gather(int root, std::span<const std::byte> blob, Deadline deadline);
    /// `blobs` counts at `root` only, one for each rank; each rank gets its own.
    Result<Blob> scatter(int root, const std::vector<Blob>& blobs, Deadline deadline);
    /// Everybody's blob at everybody, by rank.
    Result<std::vector<Blob>> all_gather(std::span<const std::byte> blob, Deadline deadline);
    /// Returns when all ranks have called it.
    Status barrier(Deadline deadline);

protected:
    struct Received {
        int from = 0;
        Blob message;
    };
    /// Starts to send to another rank; the message is the implementation's from here on.
    virtual Status start_send(int to, Blob message) = 0;
    /// Some message that has arrived, if there is one; also moves sends on. Does not wait.
    virtual Result<std::optional<Received>> poll() = 0;
    /// True when all that was sent is out of our hands.
    virtual bool sends_done() = 0;
    /// Waits a little for something to poll. `tries` counts the fruitless polls before it.
    virtual void pause(int tries) = 0;
    /// A collective has failed.
    [[nodiscard]] bool failed() const { return failed_; }

private:
    enum class Kind : std::uint8_t { kGather = 1, kScatter = 2, kAllGather = 3 };

    Status send(int to, Kind kind, std::span<const std::byte> blob);
    /// Waits for one message of this collective from each rank in `missing`, in any order.
    Status receive(Kind kind, std::vector<int> missing, const std::function<void(int from, Blob blob)>& take,
                   Deadline deadline);
    Status flush(Deadline deadline);
    [[nodiscard]] std::vector<int> others() const;
    Status collect(int root, std::span<const std::byte> blob, std::vector<Blob>& blobs, Deadline deadline);
    Status distribute(int root, const std::vector<Blob>& blobs, Blob& mine, Deadline deadline);
    Status collect_everywhere(std::span<const std::byte> blob, std::vector<Blob>& blobs, Deadline deadline);
    Status start_collective();
    Status end_collective(Status status);

    bool failed_ = false;
    std::uint32_t epoch_ = 0;      // number of the collective, equal on all ranks
    std::vector<Received> early_;  // from ranks that are a collective ahead
};

}  // namespace sluice
