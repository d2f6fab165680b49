-- Pandoc's filter for screens: boxes that can be ticked (pandoc makes them of these two signs), and tables that a
-- notebook displays.

function RawBlock(block)
  if block.format == 'html' and block.text:find('<table') then
    return pandoc.read(block.text, 'html').blocks
  end
end

function Span(span)
  local name = span.classes[1]
  if name == 'open' then return pandoc.Str('☐') end
  if name == 'ticked' then return pandoc.Str('☒') end
end

function Div(div)
  if div.classes[1] == 'room' then
    div.attributes = { style = 'height:' .. (2 * tonumber(div.attributes.lines)) .. 'em' }
    return div
  end
end
