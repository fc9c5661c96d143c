// SPDX-License-Identifier: Apache-2.0
// What browsers ask a server for: the page, its files, and the events that it shows.
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "dashboard/pages.h"
#include "serve/api_server.h"

namespace loralei {
namespace {

void send(HttpResponse response, Reply& reply) {
  if (response.status == 304) return reply.empty(304, std::move(response.headers));
  const std::string type(response.header("content-type"));
  std::erase_if(response.headers, [](const auto& header) { return header.first == "Content-Type"; });
  reply.send(response.status, type.c_str(), std::move(response.body), std::move(response.headers));
}

}  // namespace

void ApiServer::show_page(const RouteMatch& route, const HttpRequest& request, Reply& reply) {
  if (route.id == RouteId::kIndex) return index(request, reply);
  if (route.id == RouteId::kDashboardFile) return dashboard_file(route.name, request, reply);
  follow_events(request, reply);
}

void ApiServer::index(const HttpRequest& request, Reply& reply) const {
  if (wants_page(request)) return send(page_answer(request), reply);
  std::string text = "Loralei " + options_.version + ", serving " + options_.model_names.front() + " with " +
                     std::to_string(catalogue_->size()) + " adapters\n\n" + route_list();
  reply.send(200, "text/plain; charset=utf-8", std::move(text), {{"Vary", "Accept"}});
}

void ApiServer::dashboard_file(const std::string& name, const HttpRequest& request, Reply& reply) const {
  std::optional<HttpResponse> answer = page_file_answer(name, request);
  if (answer) return send(std::move(*answer), reply);
  reply.refuse(api_error_of_status(404, "The page has no file " + name.substr(0, 200) + "; open / in a browser."));
}

void ApiServer::follow_events(const HttpRequest& request, Reply& reply) {
  const Result<EventQuery> query = parse_event_query(request.query);
  if (!query.ok()) return reply.refuse(to_api_error(query.error()));
  if (request.method == "HEAD") return reply.empty(200, {{"Content-Type", "text/event-stream; charset=utf-8"}});
  const Status status = feed_.follow(*query, [&reply]() -> std::shared_ptr<ResponseWriter> {
    return reply.start_events() ? reply.shared_writer() : nullptr;
  });
  if (!status.ok()) reply.refuse(to_api_error(status.error()));
}

}  // namespace loralei
