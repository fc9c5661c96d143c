// SPDX-License-Identifier: Apache-2.0
// Models and adapters as lists.
#include "wire/json_out.h"
#include "wire/responses.h"

namespace loralei {
namespace {

void put_model(JsonOut& out, const ModelCard& card) {
  out.begin_object().key("id").string(card.id).key("object").string("model").key("created").number(card.created);
  out.key("owned_by").string("loralei").key("root").string(card.root).key("parent").string_or_null(card.parent);
  out.key("max_model_len").number(card.max_model_len).key("permission").begin_array().begin_object();
  out.key("id")
      .string("modelperm-" + card.id)
      .key("object")
      .string("model_permission")
      .key("created")
      .number(card.created);
  for (const char* allowed : {"allow_sampling", "allow_logprobs", "allow_view"}) out.key(allowed).boolean(true);
  for (const char* denied : {"allow_create_engine", "allow_search_indices", "allow_fine_tuning", "is_blocking"}) {
    out.key(denied).boolean(false);
  }
  out.key("organization").string("*").key("group").null().end_object().end_array().end_object();
}

void put_adapter(JsonOut& out, const AdapterRow& row) {
  out.begin_object().key("name").string(row.name).key("path").string(row.path).key("source").string(row.source);
  out.key("state").string(row.state).key("tier").string(row.tier).key("bytes").number(row.bytes).key("rank").number(
      row.rank);
  out.key("version").string_or_null(row.version).key("uses").number(row.uses).key("running").number(row.running);
  out.key("waiting").number(row.waiting);
  out.key("recent_uses").real(row.recent_uses).key("load_s");
  row.load_s ? out.real(*row.load_s) : out.null();
  out.key("keep_score");
  row.keep_score ? out.real(*row.keep_score) : out.null();
  out.key("left").string_or_null(row.left);
  out.key("pinned").boolean(row.pinned).key("modules").begin_object();
  for (const auto& [module, count] : row.modules) out.key(module).number(count);
  out.end_object().key("change_norm");
  row.change_norm ? out.real(*row.change_norm) : out.null();
  out.key("notes").begin_array();
  for (const std::string& note : row.notes) out.string(note);
  out.end_array().key("error").string_or_null(row.error).key("number");
  row.number > 0 ? out.number(row.number) : out.null();
  out.key("versions").begin_array();
  for (const AdapterVersionRow& one : row.versions) {
    out.begin_object().key("number").number(one.number).key("digest").string(one.digest).key("path").string(one.path);
    out.key("state").string(one.state).key("pinned").boolean(one.pinned).key("error").string_or_null(one.error);
    out.end_object();
  }
  out.end_array().end_object();
}

}  // namespace

std::string model_card(const ModelCard& card) {
  JsonOut out;
  put_model(out, card);
  return out.take();
}

std::string model_list(const std::vector<ModelCard>& cards) {
  JsonOut out;
  out.begin_object().key("object").string("list").key("data").begin_array();
  for (const ModelCard& card : cards) put_model(out, card);
  out.end_array().end_object();
  return out.take();
}

std::string adapter_row(const AdapterRow& row) {
  JsonOut out;
  put_adapter(out, row);
  return out.take();
}

std::string adapter_list(const std::vector<AdapterRow>& rows) {
  JsonOut out;
  out.begin_object().key("object").string("list").key("data").begin_array();
  for (const AdapterRow& row : rows) put_adapter(out, row);
  out.end_array().end_object();
  return out.take();
}

std::string lora_loaded_text(std::string_view name) {
  return "Success: LoRA adapter '" + std::string(name) + "' added successfully.";
}

std::string lora_unloaded_text(std::string_view name) {
  return "Success: LoRA adapter '" + std::string(name) + "' removed successfully.";
}

}  // namespace loralei
