#include "bench/pack_load.h"

#include <algorithm>
#include <atomic>
#include <thread>

namespace sluice::bench {

Result<std::unique_ptr<PackLoad>> PackLoad::create(Device& device, const OwnerRoute& route,
                                                   const SegmentBases& segments) {
    std::unique_ptr<PackLoad> load(new PackLoad(device));
    std::int64_t largest = 1;
    for (const ServedDemand& demand : route.demands) {
        for (const ServedChunk& chunk : demand.chunks) {
            if (chunk.path == Path::kPacked) {
                SLUICE_ASSIGN_OR_RETURN(ChunkProgram program, compile_pack(device, chunk, segments));
                load->chunks_.push_back(std::move(program));
                largest = std::max(largest, chunk.wire_bytes);
            }
        }
    }
    for (int lane = 0; lane < device.lanes(); ++lane) {
        SLUICE_ASSIGN_OR_RETURN(Buffer slot, device.allocate(largest));
        load->slots_.push_back(std::move(slot));
    }
    return load;
}

Status PackLoad::run() {
    std::atomic<std::size_t> next = 0;
    std::vector<Status> results(slots_.size());
    std::vector<std::thread> threads;
    for (std::size_t lane = 0; lane < slots_.size(); ++lane) {
        threads.emplace_back([&, lane] {
            for (std::size_t i = next++; i < chunks_.size() && results[lane].ok(); i = next++) {
                results[lane] =
                    device_.run(*chunks_[i], {slots_[lane].data(), nullptr}, static_cast<int>(lane), nullptr);
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    for (const Status& result : results) {
        SLUICE_RETURN_IF_ERROR(result);
    }
    return ok_status();
}

}  // namespace sluice::bench
