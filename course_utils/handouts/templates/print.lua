-- Pandoc's filter for paper: divs and spans become functions of the Typst template, links get numbers.

local numbers, sources = {}, {}

local function quoted(text)
  return '"' .. text:gsub('\\', '\\\\'):gsub('"', '\\"'):gsub('\r', ''):gsub('\n', '\\n'):gsub('\t', '\\t') .. '"'
end

function CodeBlock(block)
  local kind = block.classes[1] or 'text'
  return pandoc.RawBlock('typst', '#listing(kind: ' .. quoted(kind) .. ', ' .. quoted(block.text) .. ')')
end

local function fit(table)  -- a wide one gets columns by the length of what is in them
  local longest, total = {}, 0
  local function measure(rows)
    for _, row in ipairs(rows) do
      for place, cell in ipairs(row.cells) do
        cell.attr = pandoc.Attr()
        longest[place] = math.max(longest[place] or 6, #pandoc.utils.stringify(cell.contents))
      end
    end
  end
  table.attr = pandoc.Attr()
  measure(table.head.rows)
  for _, body in ipairs(table.bodies) do measure(body.body) end
  for _, length in ipairs(longest) do total = total + length end
  if total > 100 then
    local weights, sum = {}, 0
    for place, length in ipairs(longest) do
      weights[place] = length ^ 0.6
      sum = sum + weights[place]
    end
    for place, spec in ipairs(table.colspecs) do
      table.colspecs[place] = { spec[1], weights[place] / sum }
    end
  end
  return table
end

Table = fit

function RawBlock(block)  -- a table that a notebook displays
  if block.format == 'html' and block.text:find('<table') then
    return pandoc.read(block.text, 'html').blocks:walk({ Table = fit })
  end
end

function Link(link)
  if not link.target:match('^https?://') then
    return nil
  end
  if not numbers[link.target] then
    table.insert(sources, link.target)
    numbers[link.target] = #sources
  end
  local mark = pandoc.RawInline('typst', '#numbered(' .. numbers[link.target] .. ')')
  return { link, mark }
end

function Image(image)
  local alt = quoted(pandoc.utils.stringify(image.caption))
  local call = '#picture(' .. quoted(image.src) .. ', ' .. image.attributes.width .. ', ' .. alt .. ')'
  return pandoc.RawInline('typst', call)
end

function Span(span)
  local name = span.classes[1]
  if name then
    local content = { pandoc.RawInline('typst', '#' .. name .. '[') }
    for _, inline in ipairs(span.content) do table.insert(content, inline) end
    table.insert(content, pandoc.RawInline('typst', ']'))
    return content
  end
end

function Div(div)
  local name = div.classes[1]
  if name then
    local arguments = ''
    for key, value in pairs(div.attributes) do
      arguments = arguments .. key .. ': ' .. value .. ', '
    end
    table.insert(div.content, 1, pandoc.RawBlock('typst', '#' .. name .. '(' .. arguments .. ')['))
    table.insert(div.content, pandoc.RawBlock('typst', ']'))
    return div.content
  end
end

function Pandoc(document)
  if #sources > 0 then
    local list = {}
    for _, source in ipairs(sources) do table.insert(list, quoted(source)) end
    table.insert(document.blocks, pandoc.RawBlock('typst', '#sources((' .. table.concat(list, ', ') .. ',))'))
  end
  return document
end
