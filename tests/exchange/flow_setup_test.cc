// What ranks say of their memory is checked against what the plan reads there.
#include "runtime/exchange/flow_setup.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace sluice {
namespace {

RemoteRegion region(std::uint64_t bytes) { return {4096, bytes, {std::byte{1}}}; }

PullOwner owner(int trainer_rank, std::vector<RemoteRegion> segments) {
    PullOwner out;
    out.trainer_rank = trainer_rank;
    out.name = "trainer " + std::to_string(trainer_rank);
    out.memory.segments = std::move(segments);
    return out;
}

template <class... Owners>
std::vector<PullOwner> all(Owners... owners) {
    std::vector<PullOwner> out;
    (out.push_back(std::move(owners)), ...);
    return out;
}

// One chunk of bytes 100 to 200 of trainer 0's segment 0, which trainer 1 mirrors.
Route mirrored_route(Path path) {
    Chunk chunk;
    chunk.path = path;
    chunk.wire_bytes = 100;
    chunk.mirrors = {1};
    Piece& piece = chunk.pieces.emplace_back();
    piece.copy.item = 100;
    piece.copy.src_offset = 100;
    Route route;
    route.chunks = {chunk};
    return route;
}

TEST(FlowSetupTest, WhatTheOwnerOrAMirrorHasNotShownIsRefused) {
    for (const Path path : {Path::kDirect, Path::kMapped}) {
        const Route route = mirrored_route(path);
        EXPECT_TRUE(check_owners(route, all(owner(0, {region(200)}), owner(1, {region(200)}))).ok());
        EXPECT_TRUE(check_owners(route, all(owner(0, {region(200)}), owner(2, {}))).ok()) << "no mirror";
        for (const std::vector<RemoteRegion>& shown : {std::vector{region(199)}, std::vector<RemoteRegion>{}}) {
            for (const int who : {0, 1}) {
                std::vector<PullOwner> owners = all(owner(0, {region(200)}), owner(1, {region(200)}));
                owners[static_cast<std::size_t>(who)].memory.segments = shown;
                const Status refused = check_owners(route, owners);
                EXPECT_EQ(refused.code(), StatusCode::kInternal);
                EXPECT_NE(refused.message().find(owners[static_cast<std::size_t>(who)].name), std::string::npos)
                    << refused.message();
            }
        }
    }
}

TEST(FlowSetupTest, ReadsNeedAKey) {
    RemoteRegion without = region(200);
    without.key.clear();
    EXPECT_FALSE(check_owners(mirrored_route(Path::kDirect), all(owner(0, {without}))).ok());
    EXPECT_TRUE(check_owners(mirrored_route(Path::kMapped), all(owner(0, {without}))).ok());

    const Route packed = mirrored_route(Path::kPacked);
    std::vector<PullOwner> owners = all(owner(0, {}), owner(1, {}));
    owners.front().memory.slot_bytes = 100;
    owners.front().memory.slots = region(100);
    EXPECT_TRUE(check_owners(packed, owners).ok()) << "packed chunks have no mirrors";
    owners.front().memory.slots.key.clear();
    EXPECT_FALSE(check_owners(packed, owners).ok());
}

TEST(FlowSetupTest, StagingHoldsTheLargestChunk) {
    const Route route = mirrored_route(Path::kDirect);
    EXPECT_TRUE(check_staging(route, 100).ok());
    EXPECT_FALSE(check_staging(route, 99).ok());
}

}  // namespace
}  // namespace sluice
