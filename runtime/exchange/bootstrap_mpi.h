#pragma once

#include "runtime/exchange/bootstrap.h"

#include <memory>
#include <string>

namespace sluice {

/// Ranks that mpirun has started (also several programs of one mpirun), or one rank alone when there is no mpirun.
/// Owns MPI: it is initialised by create() and finalised by finalize() or the destructor; MPI cannot be had again after
/// that. All calls from the thread that created it. Waits poll MPI with sleeps between, so that more ranks than cores do no harm.
class MpiBootstrap final : public Bootstrap {
public:
    /// Initialises MPI. Keeps Open MPI away from UCX (a second libucp in the process) and lets its own waits yield; settings in
    /// the user's environment (OMPI_MCA_...) win. Sets environment variables: to be called before there are other threads.
    static Result<std::unique_ptr<MpiBootstrap>> create();
    ~MpiBootstrap() override;
    MpiBootstrap(const MpiBootstrap&) = delete;
    MpiBootstrap& operator=(const MpiBootstrap&) = delete;

    [[nodiscard]] int rank() const override { return rank_; }
    [[nodiscard]] int size() const override { return size_; }

    /// Ends MPI. Waits for the other ranks' call, so it is for good ends only: after a failed collective, or abandon(), it does nothing,
    /// because a rank that has died would be waited for.
    void finalize();

    /// "Open MPI v4.1.4, ...": one line, also without create().
    static std::string library_version();

protected:
    Status start_send(int to, Message message) override;
    Result<std::optional<Received>> poll() override;
    bool sends_done() override;
    void pause(int tries) override;

private:
    struct Requests;
    MpiBootstrap();
    Result<std::optional<Received>> take_received();

    int rank_ = 0;
    int size_ = 1;
    bool finalized_ = false;
    std::unique_ptr<Requests> requests_;
};

}  // namespace sluice
