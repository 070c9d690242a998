#pragma once

#include "planner/ids.h"
#include "runtime/base/status.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace sluice {

/// Kinds of messages between the ranks of a session. What each field of Message means depends on the kind; fields that
/// are not named are 0.
enum class MessageKind : std::uint8_t {
    kHello = 1,  ///< First message on a link; `version` is the sender's incarnation.
    kHeartbeat,  ///< Sender is alive; `slot` = 1: it says so because it was asked by one, and wants no answer.
    kBegin,  ///< Worker to owner: wants `version` and reads whatever is published of it; `slot` = 1: of packed chunks, only those of
    ///< groups that it opens.
    kHashes,  ///< Owner to worker, before the group's kPublish: payload = u64 hashes of direct chunks of `group`, the first of
              ///< them the one numbered `slot` among the direct chunks that the worker reads of (owner, group).
    kPublish,   ///< Owner to worker: `group` of `version` is readable; gathered parts lie in gather buffer `slot`.
    kPacked,    ///< Owner to worker: `chunk` lies packed in serve slot `slot`; `hash` is its checksum.
    kSlotRead,  ///< Worker to owner: `chunk` has been read out of its slot.
    kRelease,   ///< Worker to owner: has read all that it needs of `group`.
    kOpen,      ///< Worker to owner: has a place for `group`; its packed chunks will be read.
    // The coordinator's: `version` = the round, counted from 1; `slot` = StatusCode, `chunk` = the peer that the failure is about or -1,
    // `group` = the rank that failed or -1, payload = the error's text. See Coordination.
    kReport,   ///< To the coordinator: the sender's part of the round is over.
    kVerdict,  ///< From the coordinator (or to a new one, by a rank that knows it): the outcome of the round.
    kAbort,    ///< From the coordinator: the round has failed, stop.
    kNote,     ///< To the coordinator: a part of the sender's note, in order (see Session::gather_notes).
};
inline constexpr std::uint8_t kLastMessageKind = static_cast<std::uint8_t>(MessageKind::kNote);

/// Which of a process' transfers a message belongs to.
enum class FlowId : std::uint8_t {
    kSync = 0,    ///< Trainers serve workers.
    kGather = 1,  ///< Trainers serve their shards to trainers that gather.
};
inline constexpr int kFlowCount = 2;

struct Message {
    MessageKind kind = MessageKind::kHeartbeat;
    FlowId flow = FlowId::kSync;
    std::int32_t sender = 0;  ///< World rank.
    std::uint64_t version = 0;
    GroupId group = 0;
    ChunkId chunk = 0;
    std::int32_t slot = 0;
    std::uint64_t hash = 0;
    std::span<const std::byte> payload;  ///< Views the received bytes; valid during the handler only.
};

/// Fixed size of an encoded header; the payload travels beside it.
inline constexpr std::size_t kMessageHeaderBytes = 60;
using MessageHeader = std::array<std::byte, kMessageHeaderBytes>;

/// Little-endian, with magic, format, session, payload length and a checksum over header and payload.
void encode_message(const Message& message, std::uint64_t session, MessageHeader& header);

/// Checks everything that can be checked without knowing the plan: sizes, magic, format, session, checksum, known kind and flow,
/// non-negative sender. Never allocates unless it fails.
Result<Message> decode_message(std::span<const std::byte> header, std::span<const std::byte> payload,
                               std::uint64_t session);

}  // namespace sluice
